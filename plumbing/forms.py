"""Prompts, and the form of a completion: its tags, its answer block, what both of them earn."""

import re
from typing import NamedTuple

# ---- Prompts and rewards


class Prompt(NamedTuple):
    """A way to ask, and with it the form of the answer that the reward expects."""

    text: str  # the question, with the problem's columns as {placeholders}
    chat: bool = True  # as the user's turn in the chat template; False: the text alone
    opening: str = "<think>"  # the assistant's turn begins with it, written by us
    thinking: str = "think"  # the tag around the thinking; empty: free text before the answer
    stop: tuple = ()  # texts that end a completion; the completion keeps them
    weights: tuple = (1.0, 1.0)  # of format and answer in the total reward
    steps: bool = False  # countdown: a list of steps is an answer, too, and so is an equation


class Reward(NamedTuple):
    """What a completion earns: `total` is the weighted sum of the parts; `why` is for people."""

    total: float
    format: float
    answer: float  # 0 or 1
    why: str


class Form(NamedTuple):
    """How a completion keeps the form: 0, 0.5 or 1, and what is wrong with it."""

    score: float
    fault: str = ""


def make_reward(prompt, form, answer, why):
    """A `Reward` from its parts, each with the prompt's weight.

    Args:
        form: a `Form`, or its score alone.
        answer: whether the answer is right; `why` says what is wrong with it.
    """
    form = form if isinstance(form, Form) else Form(form)
    total = prompt.weights[0] * form.score + prompt.weights[1] * answer
    verdict = "correct" if answer else why
    if form.fault and form.fault not in verdict:
        verdict = f"{verdict}; format: {form.fault}"
    return Reward(total, form.score, float(answer), verdict)


def render(prompt, problem, tokenizer):
    """The prompt's text filled in, in the model's chat template, or after `User:` without one."""
    try:
        question = prompt.text.format(**problem)
    except (LookupError, ValueError) as error:
        fault = f"the prompt's text cannot be filled in ({type(error).__name__}: {error})"
        hint = f"the problem has {', '.join(problem)}, and a brace that is meant is written twice"
        raise ValueError(f"{fault}: {hint}") from None
    if not prompt.chat:
        return question + prompt.opening
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": question}]
        turns = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return turns + prompt.opening
    return f"User: {question}\nAssistant: {prompt.opening}".rstrip()


def encode_prompt(text, tokenizer):
    """Token ids, with the beginning-of-sequence token unless a chat template has written it."""
    bos = getattr(tokenizer, "bos_token", None)
    return tokenizer.encode(text, add_special_tokens=bool(bos) and not text.startswith(bos))


# ---- Reading a completion

END_MARKERS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
BACKWARDS = "|".join(re.escape(marker[::-1]) for marker in END_MARKERS)
END = re.compile(rf"(?:\s|{BACKWARDS})*+")  # matched against a reversed text
MAX_ANSWER = 1_000  # characters; a longer answer block is not well-formed


def strip_end(text):
    """`text` without the end-of-sequence markers and white space around its end. Linear time."""
    return text[: len(text) - END.match(text[::-1]).end()]


def format_reward(text, prompt, well_formed):
    """The `Form` of a completion: thinking, then one answer block whose content is `well_formed`.

    With the tag `think` that is `thinking </think> <answer> ... </answer>`, without
    `... <answer> ... </answer>`. 0.5 if only the content is not well-formed, 0 for anything else.
    """
    try:
        answer = only_answer(text, prompt)
    except ValueError as error:
        return Form(0.0, str(error))
    if len(answer) > MAX_ANSWER or not well_formed(answer):
        return Form(0.5, "something else in the answer block")
    return Form(1.0)


def only_answer(text, prompt):
    """What the answer block of a completion in the right form holds, else ValueError."""
    if prompt.thinking:
        opening = f"<{prompt.thinking}>"
        closing = f"</{prompt.thinking}>"
        text = text.lstrip()
        if opening not in prompt.opening and not text.startswith(opening):
            raise ValueError(f"no {opening} at the start")
        # Some models repeat the tag that the prompt has already opened.
        thinking, closed, text = text.removeprefix(opening).partition(closing)
        if not closed:
            raise ValueError(f"no {closing}")
        if opening in thinking:
            raise ValueError(f"a second {opening}")
        text = text.strip()
        if not text.startswith("<answer>"):
            blocks = "text before the answer block" if "<answer>" in text else "no <answer>"
            raise ValueError(f"{blocks} after {closing}")
    start = text.find("<answer>")
    if start < 0:
        raise ValueError("no <answer>")
    inside, closed, rest = text[start + len("<answer>") :].partition("</answer>")
    if not closed:
        raise ValueError("no </answer>")
    if "<answer>" in inside + rest:
        raise ValueError("two answer blocks")
    if rest:
        raise ValueError("text after </answer>")
    if prompt.thinking and re.search(f"</?{prompt.thinking}>", inside):
        raise ValueError(f"<{prompt.thinking}> in the answer block")
    return inside


def last_answer(text, prompt):
    """What the last `<answer>` block after the thinking holds; ValueError if there is none."""
    # All of the text where the closing tag is missing: rfind is -1 there.
    conclusion = text[text.rfind(f"</{prompt.thinking}>") + 1 :] if prompt.thinking else text
    start = conclusion.rfind("<answer>", 0, max(0, conclusion.rfind("</answer>")))
    if start < 0:
        raise ValueError("no answer block after the thinking")
    return conclusion[start + len("<answer>") : conclusion.find("</answer>", start)]
