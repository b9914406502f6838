"""What the pages say in their own words, read out of a record: the facts and the predictions."""

import math

from lesson.rounding import rounded
from lesson.sources import functions, stop


def calls(call, name):
    """All calls of a function below a call."""
    inner = list(call.get("calls", []))
    for visit in call["visits"]:
        inner += visit.get("calls", [])
    found = [one for one in inner if one["name"] == name]
    for one in inner:
        found += calls(one, name)
    return found


class Reading:
    """A recorded call and the table of values."""

    def __init__(self, call, values):
        self.call = call
        self.values = values

    def row(self, function, name, k, argument=None):
        """What belongs to completion k of a variable of a function, or None.

        `argument`: only of calls that have this text among their arguments.
        """
        found = [self.call] if function == self.call["name"] else calls(self.call, function)
        for call in found:
            given = [self.values[at].get("text") for _, at in call["args"]]
            if argument and argument not in given:
                continue
            for visit in call["visits"]:
                for label, at in visit["set"]:
                    row = self.values[at].get("rows", {}).get(str(k))
                    if label == name and row is not None:
                        return row
        return None

    def need(self, function, name, k, argument=None):
        """The same of what the page cannot do without."""
        row = self.row(function, name, k, argument)
        if row is None:
            stop(f"`{function}` sets no `{name}` any more: mend docs/lesson/reading.py.")
        return row

    def facts(self, size):
        """Of each completion of the group what the page tells of its way through the step."""
        found = []
        for k in range(size):
            ratio = self.row("grpo_loss", "ratio", k)
            loss = self.row("update", "parts", k)  # without a penalty not of advantage 0
            furthest = lambda x: abs(math.log(x))
            found.append(
                {
                    "reward": self.need("main", "rewards", k)["num"],
                    "advantage": self.advantage(k),
                    "ratio": max(ratio["tok"], key=furthest) if ratio else None,
                    "loss": loss["num"] if loss else 0.0,
                    "before": self.before(k)["tok"],
                    "after": self.after(k)["tok"],
                }
            )
        return found

    def advantage(self, k):
        """The completion's; with VinePPO the mean of its tokens'."""
        own = self.row("update", "e.per_token['advantages']", k)
        if own:
            return rounded(sum(own["tok"]) / len(own["tok"]))
        return self.need("main", "advantage", k)["num"]

    def after(self, k):
        return self.need("add_log_probs", "e.per_token[name]", k, argument="new_log_probs")

    def before(self, k):
        """Log-probs before the step: of several optimizer steps before the first."""
        sampled = "episodes[-1].per_token['sampler_log_probs']"
        return (
            self.row("add_log_probs", "e.per_token[name]", k, argument="old_log_probs")
            or self.row("update", "batch['log_probs']", k)
            or self.need("sample_and_reward", sampled, k)
        )


def line_of(file, source, function, text):
    """The number of the first line of a function that begins with a text."""
    spec = functions(file, source).get(f"{file}:{function}", {"first": 1, "last": 0})
    lines = source.splitlines()
    for number in range(spec["first"], spec["last"] + 1):
        if lines[number - 1].strip().startswith(text):
            return number
    stop(f"{file}: `{function}` has no line `{text}`: mend docs/lesson/reading.py.")


# Where the page leads to from the facts of an attempt.
LINES = {
    "reward": ("sample_and_reward", "e.reward = reward"),
    "advantage": ("main", "e.advantage = advantage"),
    "ratio": ("grpo_loss", "ratio = "),
    "loss": ("update", "parts, stats = "),
    "after": ("main", 'add_log_probs(engine, episodes, "new_log_probs"'),
}


def lines(file, source):
    return {name: line_of(file, source, *place) for name, place in LINES.items()}


def percent(log_prob):
    return f"{100 * math.exp(log_prob):.3g}%"


def signed(x):
    return f"{x:+.3f}".replace("-", "−")


class Predictions:
    """Six places that ask before they show, with their answers from the record."""

    def __init__(self, step, facts):
        self.attempts = step["attempts"]
        self.facts = facts
        self.total = step["runs"][0]["total"]
        places = range(len(self.attempts))
        self.right = next(k for k in places if self.attempts[k]["answer"] == 1)
        self.wrong = next(k for k in places if self.attempts[k]["format"] == 1 and k != self.right)
        self.cut = next(k for k in places if self.attempts[k]["finish"] == "length")
        self.tokens = step["tokens"]

    def all(self):
        made = [self.reward, self.advantage, self.ratio, self.weight, self.loss, self.sign]
        hides = ["reward", "advantage", "ratio", "", "loss", "after"]  # facts on top of the page
        return [{**one(), "hides": fact} for one, fact in zip(made, hides)]

    def reward(self):
        return {
            "at": ("sample_and_reward", "e.reward = reward"),
            "question": f"Attempt {self.wrong + 1} closes its thinking and gives one answer in its "
            "tags, an expression that is wrong. What is its reward, from 0 to 2?",
            "choices": ["0", "1", "2"],
            "right": int(self.attempts[self.wrong]["reward"]),
            "because": "1 for the form, 0 for the answer. The verifier says: "
            f"{self.attempts[self.wrong]['why']}.",
        }

    def advantage(self):
        rewards = [one["reward"] for one in self.attempts]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        own = self.facts[self.right]["advantage"]
        choices = sorted({own, rewards[self.right], rewards[self.right] - mean})
        return {
            "at": ("group_advantages", "advantages = (rewards - mean)"),
            "question": f"The rewards of the group are {', '.join(f'{r:g}' for r in rewards)}. "
            f"Attempt {self.right + 1} is the only right one: its advantage?",
            "choices": [signed(x) for x in choices],
            "right": choices.index(own),
            "because": f"({rewards[self.right]:g} − {mean:.3f}) / ({std:.3f} + 0.0001): the mean "
            "and the standard deviation are those of its own group.",
        }

    def ratio(self):
        return {
            "at": ("grpo_loss", "ratio = "),
            "question": "The ratio of the policy to the one that sampled, before the step: of how "
            "many tokens is it other than 1?",
            "choices": ["of none", "of those of the right attempt", "of all"],
            "right": 0,
            "because": "The policy has just sampled these tokens, and this is the only step on "
            "them. The gradient of the ratio is not 0: it is that of the log-prob.",
        }

    def weight(self):
        short = len(self.attempts[self.right]["ids"])
        long = len(self.attempts[self.cut]["ids"])
        return {
            "at": ("grpo_loss", "per_completion = "),
            "question": f"Attempt {self.right + 1} has {short} tokens, attempt {self.cut + 1} was "
            f"cut off at {long}. How much does one of its tokens weigh, against one of attempt "
            f"{self.right + 1}?",
            "choices": ["as much", f"{short / long:.2f} as much", f"{long / short:.2f} as much"],
            "right": 1,
            "because": "Every completion has the same weight, shared by its tokens: 1/|o|. In a "
            "long wrong one each token is pushed down less (Dr. GRPO changes this).",
        }

    def loss(self):
        return {
            "at": ("main", "measured = update("),
            "question": "The parts of all completions add up to the loss. What is it, before the "
            "weights have moved?",
            "choices": ["about −1", "about 0", "about +1"],
            "right": 1,
            "because": f"It is {self.total:.1e}. With a ratio of 1 a completion's part is −A/N, "
            "and the advantages of a group add up to 0; what is left is the penalty, β times "
            "the KL. The gradient is not 0.",
        }

    def sign(self):
        own = self.facts[self.right]
        moved = [after - before for before, after in zip(own["before"], own["after"])]
        at = max(range(len(moved)), key=lambda i: abs(moved[i]))
        text = self.tokens[str(self.attempts[self.right]["ids"][at])].replace("\n", "↵")
        return {
            "at": ("main", 'add_log_probs(engine, episodes, "new_log_probs"'),
            "question": f"Token {at + 1} of the right attempt, “{text}”, had a chance of "
            f"{percent(own['before'][at])}. After the step it is",
            "choices": ["less likely", "as likely", "more likely"],
            "right": 2 if moved[at] > 0 else 0,
            "because": f"{percent(own['before'][at])} → {percent(own['after'][at])}; its advantage "
            f"is {signed(own['advantage'])}. One step comes from all completions, so a token can "
            "also move against its own advantage.",
        }


def predictions(file, source, step, facts):
    """The same for the page: each with the function and the number of its statement."""
    known = functions(file, source)
    found = []
    for one in Predictions(step, facts).all():
        function, text = one.pop("at")
        key = f"{file}:{function}"
        number = line_of(file, source, function, text)
        s = next(i for i, (a, b) in enumerate(known[key]["statements"]) if a <= number <= b)
        found.append({"key": key, "s": s, "line": number, **one})
    return found
