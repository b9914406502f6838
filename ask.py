"""Ask one or two models: type a problem, read several attempts with the verifier's sentences.

    python ask.py --model out/NAME/model
    python ask.py --model models/nano-base out/NAME/model          # before and after training
    python ask.py --task gsm8k --prompt chat --model Qwen/Qwen2.5-1.5B-Instruct

Type numbers and a target (19 36 55 7 = 65). With another task, type a question and its answer.
Enter draws one of the task's held-out problems, and q quits. Both models get the same seed.
"""

import random
import re
from dataclasses import dataclass, replace

import nano_r1


@dataclass(kw_only=True)
class Config(nano_r1.Config):
    """Let models attempt a problem of yours.

    The training settings of nano_r1.py have no effect.
    """

    model: tuple[str, ...] = ("models/nano-base",)  # one or two directories or hub ids
    attempts: int = 4  # attempts per model


def read_problem(text, task):
    """The typed text as a problem of the task. ValueError has one sentence for the user."""
    columns = set(re.findall(r"\{(\w+)\}", task.prompt.text)) - {"answer"}
    if columns == {"nums", "target"}:
        if not re.fullmatch(r"\d{1,5}([\s,]+\d{1,5}){1,7}\s*=\s*\d{1,5}", text):
            raise ValueError("Type two to eight whole numbers and a target, e.g. 19 36 55 7 = 65")
        *nums, target = map(int, re.findall(r"\d+", text))
        return {"nums": nums, "target": target}
    if len(columns) != 1 or len(text.split()) < 4:
        raise ValueError("Type a question of a sentence or more, or press Enter to draw a problem")
    return {columns.pop(): text, "answer": input("its answer, if you know it\n> ").strip()}


def judge(text, problem, task):
    """The verifier's sentence about an attempt; without a known answer, the attempt's answer."""
    if problem.get("answer") == "":
        return f"answers {task.module.final_answer(text, problem, task.prompt)}"
    return task.reward(text, problem)[3]


def printable(text):
    """The text without control characters, which could change a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text.strip())


def ask(models, problem, config, seed):
    """Print each model's attempts at the problem. A model is (name, policy, sampler, task)."""
    for name, policy, sampler, task in models:
        prompts = [task.prompt_ids(problem)]
        verdicts = []
        with nano_r1.threads_for(policy):
            found = sampler.generate(prompts, config.attempts, config.temperature, [seed])
        for token_ids, _ in found:
            text = task.text_of(token_ids)
            verdicts.append(printable(judge(text, problem, task)))
            print(f"\n── {name}, attempt {len(verdicts)}\n{printable(text)}\n=> {verdicts[-1]}")
        correct = sum(verdict.startswith("correct") for verdict in verdicts)
        if problem.get("answer") != "":
            print(f"\n{name}: {correct} of {len(verdicts)} correct", flush=True)


def main(config):
    """Ask problem after problem, until q."""
    nano_r1.check_numbers(config)
    device = nano_r1.start_process(config)
    models = []
    for name in config.model:
        own = replace(config, model=name)
        policy, tokenizer = nano_r1.load_model(own)
        task = nano_r1.Task(tokenizer, policy, own)
        sampler = nano_r1.make_sampler(policy, task, device, own)
        models.append((name, policy, sampler, task))
    problems = task.load_problems("test", config)
    random.seed(config.seed)
    while True:
        try:
            text = input(
                f"\nA problem of {config.task}, then = and its answer; Enter draws one; q ends\n> "
            ).strip()
            if text == "q":
                return
            problem = read_problem(text, task) if text else random.choice(problems)
            print(task.prompt_text(problem))
            ask(models, problem, config, config.seed)
        except ValueError as error:
            print(error)
        except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C
            return print()


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    nano_r1.run_command(main, Config)
