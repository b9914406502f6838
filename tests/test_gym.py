"""reasoning-gym's data sets: what each of them pays, which are refused."""

import json

import pytest
from work import light

import nano_r1
from benchmarks import runs

gym_rewards = nano_r1.import_task("gym")
NAMES = sorted(set(gym_rewards.reasoning_gym.factory.DATASETS) - {"composite"})  # needs others
WITHOUT_ANSWERS = ["boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"]
PAYS_ANY_TEXT = ["game_of_life_halting"]
# Smaller than usual, for time.
SMALL = {
    "knight_swap": "&min_nodes=6&max_nodes=6&min_pieces=1&max_pieces=1",
    "quantum_lock": "&difficulty=2",
    "zebra_puzzles": "&num_people=3&num_characteristics=3",
    "futoshiki": "&min_board_size=4&max_board_size=4",
}


@pytest.fixture(autouse=True)
def hashes(monkeypatch):
    """As if Python's hashes were fixed."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def paid(name, text):
    """The data set's first two problems, and the answer rewards of a text; None: their own."""
    spec = f"{name}?size=2{SMALL.get(name, '')}&unsafe={int(name in gym_rewards.EXECUTED)}"
    found = []
    for problem in gym_rewards.load_problems("all", spec):
        answer = problem["answer"] if text is None else text
        result = gym_rewards.reward(f"\n</think>\n<answer>{answer}</answer>", problem)
        assert result.format == 1.0
        found.append(result.answer)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_pays_its_own_answers(name):
    assert paid(name, None) == [0.0 if name in WITHOUT_ANSWERS else 1.0] * 2
    assert paid(name, "zzz") == [1.0 if name in PAYS_ANY_TEXT else 0.0] * 2


@pytest.mark.parametrize("spec", ["codeio", "n_queens?unsafe=False"])
def test_a_data_set_that_executes_the_text_is_refused_unless_it_is_allowed(spec):
    with pytest.raises(SystemExit, match="its scorer executes a text, or has no bound: unsafe=1"):
        gym_rewards.load_problems("train", spec)


def test_a_data_set_that_differs_in_each_process_is_refused(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED")
    with pytest.raises(SystemExit, match="word_ladder.size=3: has other problems in each process"):
        gym_rewards.load_problems("train", "word_ladder?size=3")


def test_a_long_and_an_empty_answer_reach_the_scorer():
    (problem, _) = gym_rewards.load_problems("all", "ab?size=2")
    for length, is_scored in ((0, True), (9_999, True), (10_000, False)):
        why = gym_rewards.reward(f"</think><answer>{'A' * length}</answer>", problem).why
        assert ("too long" not in why) == is_scored


ATTACK = "__import__('os').putenv('A', 'B')"


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(gym_rewards.EXECUTED)))
def test_no_scorer_that_is_not_refused_executes_a_text(name, monkeypatch):
    paid(name, None)  # its problems are made by eval, too
    seen = []
    for place in ("builtins.eval", "builtins.exec"):
        monkeypatch.setattr(place, lambda code, *args, **more: seen.append(code))
    for text in (ATTACK, f"[{ATTACK}]", f"({ATTACK})", "9**9**9", "9* *9", "9*\n*9**9**9"):
        paid(name, text)
    assert not [code for code in seen if "__" in str(code) or "**" in str(code)]


@pytest.mark.parametrize("name", ["chain_sum", "coin_flip", "puzzle24", "decimal_arithmetic"])
def test_a_text_that_names_a_huge_number_gets_no_reward_with_little_work(name):
    for text in ("1e999999999", "9**9**9**9", "-1e-999999999", "9" * 1999, "9*" * 999 + "9"):
        assert light(paid, name, text) == [0.0, 0.0]


def test_a_scorer_that_raises_costs_the_reward(capfd):
    problem = gym_rewards.load_problems("all", "prime_factorization?size=2")[0]
    for _ in range(2):
        result = gym_rewards.reward("</think><answer>a×b</answer>", problem)
        assert result[:3] == (1.0, 1.0, 0.0) and "the scorer fails: ValueError" in result.why
    assert capfd.readouterr().out.count("its scorer fails on some texts") == 1


def test_partial_credit_is_paid_only_if_it_is_asked_for():
    for setting, total in (("0", 1.0), ("1", 1.05)):
        problem = gym_rewards.load_problems("all", f"countdown?size=2&partial={setting}")[0]
        result = gym_rewards.reward("</think><answer>1</answer>", problem)
        assert result[:3] == (total, 1.0, 0.0) and result.why == "score 0.05"


def test_no_question_is_in_both_splits():
    source = 'leg_counting?size=60&max_animals=3 basic_arithmetic?size=99&operators=["+"]'
    source += "&min_terms=2&max_terms=2&min_digits=1&max_digits=1"  # of which many are equal
    train = gym_rewards.load_problems("train", source)
    test = gym_rewards.load_problems("test", source)
    assert len({problem["question"] for problem in train + test}) == len(train + test)
    assert json.loads(json.dumps(train)) == train  # as in a run's files
    assert {gym_rewards.subgroups(problem)[0] for problem in train} == set(source.split())


def test_a_prompt_can_show_neither_the_answer_nor_the_metadata():
    (problem, *_) = gym_rewards.load_problems("all", "leg_counting?size=5")
    assert not hasattr(gym_rewards, "HIDDEN")  # so the column `answer` is hidden
    assert set(problem) == {"question", "answer", "data"}


@pytest.mark.parametrize(
    "source, sentence",
    [
        (None, "--task gym needs --data NAME"),
        ("puzzle25", "puzzle25: .*not registered"),
        ("composite", "composite: "),  # it needs those of its parts
        ("chain_sum?colour=3", "colour=3: .*'colour'"),
        ("chain_sum?min_terms=0", "min_terms=0: min_terms must be positive"),
    ],
)
def test_a_mistake_in_data_is_one_sentence(source, sentence):
    with pytest.raises(SystemExit, match=sentence):
        gym_rewards.load_problems("train", source)


def test_the_page_names_scorers_that_execute_or_pay_any_text():
    page = (runs.ROOT / "docs/own_task.md").read_text("utf-8")
    for name in gym_rewards.EXECUTED + gym_rewards.CALCULATED + PAYS_ANY_TEXT:
        assert f"`{name}`" in page


def test_puzzle24_pays_other_numbers_that_make_24_unless_it_is_repaired(monkeypatch):
    puzzle24 = nano_r1.import_task("puzzle24")
    monkeypatch.setattr(puzzle24, "DATA", "puzzle24?size=3")
    for source, paid in ((None, 1.0), ("repaired", 0.0)):
        for problem in puzzle24.load_problems("all", source):
            own = puzzle24.reward(f"</think><answer>{problem['answer']}</answer>", problem)
            other = puzzle24.reward("</think><answer>((6+2)+6)+10</answer>", problem)
            assert own == (1.0, 1.0, 1.0, "correct")
            assert other[:3] == (paid, 1.0, 0.0)
