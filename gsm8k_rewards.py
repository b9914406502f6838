r"""GSM8K: word problems of primary school. The answer is one number.

Here are a problem of the generator and a completion with the full reward of 2 (the prompt has
opened `<think>`):

    question: Iris has 64 eggs and buys 33 more. Then Iris gives 40 of them to Ella. How many eggs
              does Iris have left?
    answer:   64+33=<<64+33=97>>97\n97-40=<<97-40=57>>57\n#### 57

    64+33=97
    97-40=57
    </think>
    <answer>57</answer>

The reward (0 to 2) is the sum of two parts:
    format 1.0  thinking, `</think>`, then one answer block with a bare number: -7, 43,500, 7/14
           0.5  the same tags around something else, or a number with more: $8,400, 72 degrees
           0.0  anything else
    answer 1.0  the number in the last answer block after the thinking is the one after `####`

A number is read as an exact fraction: 7, 7.0 and 14/2 are equal, but 33.3 and 100/3 are not.
    read      thousands in groups of three, by commas or spaces; a sign (- + − –) and a currency
              (its sign, or a code such as USD) before it; % ° ¢ and up to three words, the unit,
              after it (km/h, too); \frac{7}{2}, \frac72, 3 1/2; markup around it: **, \boxed{ },
              \text{ }, \( \), \[ \], ( ), $ and `; a final full stop
    percent   50% is 50: GSM8K asks "what percent" and answers with the bare number
    unit      5 feet is 5, but if the gold answer has a unit in words, such as meters, another one
              is wrong (currencies and °C are not compared)
    refused   two numbers (3 or 4, 1 3/2, x = 5 + 1 = 6), groups that are not of three (1,08),
              words that change the number (5 million, 3 sevenths, 5 pi, 5 is wrong), a unit of one
              letter (5k, 5x), digits other than 0-9, x = 72
A refused answer gets no answer reward, and `why` says what is wrong. Nothing is executed. The
time is linear in the length of the completion.
"""

import random
import re
import zlib
from collections import namedtuple
from fractions import Fraction
from operator import add, mul, sub

import countdown_rewards
from countdown_rewards import Reward

# A way to ask; countdown_rewards.py explains its fields.
Prompt = namedtuple("Prompt", "text chat opening stop", defaults=(True, "<think>", ()))

HIDDEN = ("answer",)  # the columns of a problem that a prompt never shows

# ---- The problems

HUB_DATASET = "openai/gsm8k"  # 7,473 problems to train on, 1,319 to test
NAMES = "Ava Ben Carla Dan Ella Finn Grace Hugo Iris Jack Kira Leo Mia Noah Olga Paul".split()
THINGS = "apples books cards coins eggs flowers marbles pencils shells stamps stickers toys".split()


def read_stories(text):
    """[(story, steps)]"""
    stories = []
    for story, steps in re.findall(r"((?:\S.*\n)+)    (.*)\n", text):
        stories.append((" ".join(story.split()), steps))
    return stories


# Below each story are the steps that solve it. In them, a is the number put in for {a}, and r1 is
# the result of step 1. a, b and c are drawn from 2 to 99, and the others from 2 to 12, until every
# result is a whole number from 1 to 999.
STORIES = read_stories("""
{A} has {a} {x} and buys {b} more. Then {A} gives {c} of them to {B}. How many {x}
does {A} have left?
    a+b r1-c
{A} picks {a} {x} on Monday and {k} times as many on Tuesday. How many {x} does {A}
pick in all?
    a*k a+r1
{A} sells {a} {x} in April and half as many in May. How many {x} does {A} sell
altogether?
    a/2 a+r1
A box holds {k} {x}. {A} fills {m} boxes and has {a} {x} left over. How many {x} are
there in all?
    m*k r1+a
{A} buys {k} {x} at {m} dollars each and pays with {a} dollars. How many dollars
does {A} get back?
    k*m a-r1
{A} reads {k} pages a day from Monday to Friday and {a} pages at the weekend. How
many pages is that?
    k*5 r1+a
{A} has {a} {x}. {B} has {b} more than {A}. How many {x} do they have together?
    a+b a+r1
{A} has {a} {x}, {b} fewer than {B}. How many {x} do they have together?
    a+b a+r1
{A} shares {a} {x} equally among {k} friends and gives each of them {m} more. How
many {x} does each get?
    a/k r1+m
{A} bakes {a} cakes and eats {k} of them. The others go on {m} plates, equally many
on each. How many are on a plate?
    a-k r1/m
{A} earns {k} dollars an hour and works {m} hours a day. How many dollars does {A}
earn in {h} days?
    k*m r1*h
A bus carries {a} people. At the first stop {b} get off and {c} get on. How many
people are on the bus now?
    a-b r1+c
{A} saves {k} dollars a week for a bicycle that costs {a} dollars. How many are
still missing after {m} weeks?
    k*m a-r1
A hall has {k} rows of {m} chairs. {a} people sit down, one on each chair. How many
chairs are free?
    k*m r1-a
{A} buys {k} {x} at {m} dollars each and {h} {y} at {j} dollars each. How many
dollars does {A} pay?
    k*m h*j r1+r2
{A} is {a} years old and {B} is {k} times as old. How old will {B} be in {m} years?
    a*k r1+m
{A} runs {k} miles on each of {m} days, {B} runs {h} miles on each of {j} days. How
many more miles does {A} run?
    k*m h*j r1-r2
{A} has {a} {x}. {A} gives half of them to {B}, buys {b} and loses {k}. How many {x}
does {A} have now?
    a/2 r1+b r2-k
A farm has {k} pens with {m} sheep in each and {h} pens with {j} goats in each. {a}
animals are sold. How many are left?
    k*m h*j r1+r2 r3-a
{A} needs {a} {x} and has {b}. They are sold in packs of {k}. How many packs must
{A} buy?
    a-b r1/k
""")
# These stories are only in the test split. The embedded base was not trained on them.
NEW_STORIES = read_stories("""
{A} is {a} years old and {B} is {k} years younger. How old are the two together?
    a-k a+r1
{A} walks {k} miles in the morning and {m} miles in the evening, on each of {h}
days. How many miles is that?
    k+m r1*h
A tank holds {a} liters. In each of {m} hours {k} liters flow out. How many liters
are left?
    k*m a-r1
A book has {a} pages and {A} has read {b} of them. From now on {A} reads {k} pages
a day. How many days are needed for the others?
    a-b r1/k
{A} has {a} {x}. {B} has half as many and finds {k} more. How many {x} does {B}
have?
    a/2 r1+k
{A} cuts a rope of {a} feet into {k} equal pieces. How many feet are {m} such pieces?
    a/k r1*m
A train has {k} cars with {m} seats in each. {a} seats are taken. How many seats
are free?
    k*m r1-a
{A} needs {a} points to win. {A} has {b} points and gets {k} more. How many points
are still missing?
    b+k a-r1
{A} plants {k} rows of {m} trees and {h} of them die. {B} plants {a} trees. How many
trees are there now?
    k*m r1-h r2+a
A shop has {a} {x}. {A} buys {k} of them and {B} twice as many. How many {x} are
left?
    k*2 k+r1 a-r2
""")


OPERATIONS = {"+": add, "-": sub, "*": mul, "/": Fraction}


def solve(steps, numbers):
    """[(left, operator, right, result)] of a story's steps; None if a result is not allowed."""
    values = dict(numbers)
    solution = []
    for step in steps.split():
        left, operator, right = re.split("([-+*/])", step)
        a = values[left]
        b = values[right] if right in values else int(right)
        result = OPERATIONS[operator](a, b)
        if result.denominator > 1 or not 1 <= result <= 999:
            return None
        solution.append((a, operator, b, result))
        values[f"r{len(solution)}"] = result
    return solution


def generate_problems(split, size, seed):
    """`size` distinct word problems with GSM8K's columns: `question` and the worked `answer`.

    Both splits use the same twenty stories of 2 to 4 steps, far fewer kinds than GSM8K has. No
    problem is in both splits. The test split has ten more stories, marked by `new_story` 1.
    """
    rng = random.Random(f"gsm8k {split} {seed}")
    problems = {}
    while len(problems) < size:
        story, steps = rng.choice(STORIES + NEW_STORIES if split == "test" else STORIES)
        solution = None
        while not solution:
            numbers = {}
            for name in "abckmhj":
                numbers[name] = rng.randint(2, 99 if name in "abc" else 12)
            solution = solve(steps, numbers)
        first, second = rng.sample(NAMES, 2)
        x, y = rng.sample(THINGS, 2)
        question = story.format(A=first, B=second, x=x, y=y, **numbers)
        answer = ""
        for a, operator, b, result in solution:
            step = f"{a}{operator}{b}="
            answer += f"{step}<<{step}{result}>>{result}\n"
        row = {"question": question, "answer": f"{answer}#### {result}"}
        if (story, steps) in NEW_STORIES:
            row["new_story"] = 1
        # An eighth of all problems belongs to the test split.
        for_test = zlib.crc32(question.encode()) % 8 == 0
        if for_test == (split == "test"):
            problems.setdefault(question, row)
    return list(problems.values())


def problem_key(problem):
    """Two problems with the same key are the same: the question, whatever its spacing and case."""
    return " ".join(problem["question"].lower().split())


def load_problems(split, source=None, seed=0):
    """A list of problems: dicts with the texts `question` and `answer`.

    Args:
        split: "train", "test", or "all" (every row of a file, in order; the hub's test split).
        source: None for the generator, "hub" for HUB_DATASET with its own two splits, else a file
            of JSON lines, a JSON array, csv or parquet, also with .gz. A tenth of it, at most 500,
            is the test split.
        seed: the seed of the generated training problems. No test split depends on it.
    Raises:
        problem_files.Refused: what is wrong with the source, in one sentence for the user.
    """
    if source is None:
        if split == "train":
            return generate_problems("train", 16_384, seed)
        return generate_problems(split, 512, 0)  # for every seed, so that runs can be compared
    import problem_files  # only files and the hub need it

    hub = problem_files.Hub(HUB_DATASET, "main")
    return problem_files.load(source, split, hub, to_problem, problem_key, gold)


def gold(problem):
    """(a Fraction, its unit): what follows the last `####` of the answer, or all of it."""
    value, _, unit = parse_number(problem["answer"].rpartition("####")[2])
    return value, unit


# ---- The prompts

INSTRUCTIONS = (
    "{question}\n\nThink step by step inside <think> </think> tags, then give only the final "
    "number inside <answer> </answer> tags, for example <answer>42</answer>."
)
PROMPTS = {
    # The question alone, on which the embedded nano-base was trained.
    "short": Prompt("{question}"),
    # With instructions, for a model that never saw the task.
    "chat": Prompt(INSTRUCTIONS),
    # The same instructions for a base model without a chat template.
    "plain": Prompt(INSTRUCTIONS + "\n", chat=False),
}


def subgroups(problem):
    """A problem's evaluation subgroup: the steps of its worked answer (<<3+4=7>> is one step).

    The stories that are only in the test split form a subgroup of their own.
    """
    count = problem["answer"].count("<<")
    if "new_story" in problem:
        return ["new_story"]
    if count == 0:
        return []
    return [["1_step", "2_steps", "3_steps", "4_or_more_steps"][min(count, 4) - 1]]


# ---- The reward


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion. Never raises."""
    answer, fault = read_answer(completion)
    value, why, unit = parse_number(answer)
    correct = 0.0
    if value is not None:
        right, right_unit = gold(problem)
        if value != right:
            why = f"is {value!s:.40}, not {right!s:.40}"
        elif unit and right_unit and unit != right_unit:
            why = f"is in {unit:.40}, not in {right_unit:.40}"
        else:
            correct = 1.0
            why = "correct"
    elif not answer:
        why = "no answer"
    form = 1.0
    if fault == MORE:
        form = 0.5
    elif fault:
        form = 0.0
    if fault:
        why += f"; format: {fault}"
    return Reward(form + correct, form, correct, why)


def final_answer(completion, problem, prompt=PROMPTS["short"]):
    """The vote of a completion in maj@k: the number of its answer block as text, or None."""
    answer, _ = read_answer(completion)
    value, _, _ = parse_number(answer)
    return None if value is None else str(value)


def read_answer(text):
    """(the content of the last answer block after the thinking, the first fault of the format).

    The tags are those of Countdown's first prompt. The block must hold a bare number.
    """
    answer, fault = countdown_rewards.read_answer(text, countdown_rewards.PROMPTS["short"])
    if not fault and not BARE.fullmatch(answer):
        fault = MORE
    return answer, fault


# ---- The number that a text states

# 43,500 or 43 500 (also with spaces that do not break), 2.50, 7/14, .5
PLAIN = (
    r"(?:(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3}){1,9}|(?:[ \u00a0\u2009\u202f][0-9]{3}){1,9})"
    r"|[0-9]{1,30})(?:\.[0-9]{0,30}|[^\S\n]?/[^\S\n]?0*[1-9][0-9]{0,29})?|\.[0-9]{1,30})"
)
BARE = re.compile(rf"\s*[-+−–]?{PLAIN}\s*")
MORE = "something else in the answer block"
NUMBER = re.compile(
    rf"""(?:(?P<sign>[-+−–])\ *)?
    (?:(?P<plain>{PLAIN})|(?P<whole>[0-9]{{0,30}})\s?
        \\frac\{{(?P<top>[0-9]{{1,30}})\}}\{{(?P<bottom>0*[1-9][0-9]{{0,29}})\}})
    (?:\s*(?:\\?%|¢|(?:°|\^\\circ|\^\{{\\circ\}})\s*[CF]?))?  # 50%, 25¢, 72°F
    (?P<unit>(?:[\s/]*(?:[A-Za-z]{{2,}}|[mgl](?=/))  # dollars, miles per hour, km/h, m/s
        (?:[\s/]+(?:[A-Za-z]{{2,}}|(?<=[A-Za-z]/)[a-z])){{0,2}})?)
    \s*\.?""",
    re.VERBOSE,
)
# A currency is a sign of its block in Unicode, or its code.
CURRENCY = (
    r"(?:\b(?:US|AU|CA|NZ|HK|[ACRS]))?\\?[$£¥¤\u20a0-\u20c0]|(?<![A-Za-z])(?:USD|EUR|GBP|INR|JPY"
    r"|CNY|RMB|CAD|AUD|NZD|CHF|SGD|HKD|KRW|PHP|MXN|BRL|ZAR|Rs\.?)(?![A-Za-z])"
)
# How a text is brought to the plain number in it. Two spaces take the place of a mark, so that the
# digits on both sides stay apart.
SPELLINGS = [  # (pattern, what takes its place), in this order
    (r"\{,\}", ","),
    (r"\\[ ,;:]|(?<=[0-9}])~", " "),
    (r"\\[dtc]?frac ?(?:\{([0-9]+)\}|([0-9])) ?(?:\{([0-9]+)\}|([0-9]))", r"\\frac{\1\2}{\3\4}"),
    (r"([0-9]+) ([0-9]+)/([0-9]+)", r"\1\\frac{\2}{\3}"),  # 1 1/2
    (r"\\(?:boxed|text[a-z]*|mathrm) ?\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", r"  \1  "),
    (rf"\*\*|\\[()\[\]]|`|{CURRENCY}", "  "),
    (r"^\(([^()]*)\)\.?$", r"  \1  "),
]


# These words and their plurals change the number before them: 5 million, 3 sevenths, 5 is wrong.
CHANGES_THE_NUMBER = set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty "
    "ninety hundred thousand million billion trillion quadrillion quintillion half halve third "
    "fifth eighth ninth twelfth twentieth thirtieth fortieth fiftieth dozen gross score grand "
    "lakh crore mil mill mille permille promille ppm ppb mn mio bn tn thou kilo mega giga milli "
    "micro nano bil and or to plus minus point negative squared cubed doubled tripled root pi "
    "factorial repeating repeated recurring periodic undefined indeterminate infinite infinity nan "
    "dne none null nothing invalid impossible unknown wrong incorrect false untrue not no never "
    "neither cannot".split()
)


def parse_number(text):
    """(the number that a text states, a Fraction, or None; "" or why there is none; its unit).

    50% is 50, and 3\\frac{1}{2} and 3 1/2 are 7/2. A text with anything unknown beside the number
    is refused.
    """
    text = text.strip()
    shown = f"{text!r:.60}"
    plain = text[:201]
    match = NUMBER.fullmatch(plain)
    before = ""
    while not match and plain != before:
        before = plain
        for pattern, spelling in SPELLINGS:
            plain = re.sub(pattern, spelling, plain)
        plain = plain.strip()
        match = NUMBER.fullmatch(plain)
    if not match or len(text) > 200:
        numbers = re.findall(r"[0-9][0-9.,]*", plain)
        if len(numbers) > 1:
            return None, f"more than one number: {shown}", ""
        return None, f"{'not a plain' if numbers else 'no'} number: {shown}", ""
    unit = []
    for word in re.findall("[a-z]+", match["unit"].lower()):
        singular = word.removesuffix("s")
        if {word, singular, singular.removesuffix("th")} & CHANGES_THE_NUMBER:
            return None, f"{word!r} may change the number: {shown}", ""
        unit.append(word.rstrip("es"))  # inch, inches; glass, glasses
    if match["plain"]:
        value = Fraction(re.sub(r"[\s,]", "", match["plain"]))
    else:
        value = Fraction(f"{match['top']}/{match['bottom']}")
        if match["whole"] and value >= 1:
            return None, f"more than one number: {shown}", ""
        value += int(match["whole"] or 0)
    if match["sign"] in ("-", "−", "–"):
        value = -value
    return value, "", " ".join(unit)


# ---- Files: a row is read as it is written, or refused


def to_problem(row):
    """The problem of a row. The answer is a number, or a text that ends in #### and a number."""
    import problem_files

    question = row.get("question")
    problem = {"question": question, "answer": str(row.get("answer"))}
    if not isinstance(question, str) or not question.strip() or gold(problem)[0] is None:
        needed = "question, a text, and answer, a number or a text with #### and a number"
        raise ValueError(f"needs {needed}; got {row!s:.300}")
    if problem_files.CONTROL.search(question + problem["answer"]):
        raise ValueError(
            f"a control character in {problem!s:.300}; json needs \\\\ for a backslash"
        )
    return problem
