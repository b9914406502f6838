"""The parts of nano_r1.py: sampler, scorer, loss, update, model loading."""

import copy
import json
import math
import os
import shutil
from functools import partial
from unittest import mock

import pytest
import torch
import transformers
from two_processes import make_episodes, settings, tiny_model, updated, weights_of

import countdown_rewards
import nano_r1 as r1
import variants

MODEL = r1.Config.model
CPU = torch.device("cpu")
PROBLEMS = countdown_rewards.load_problems("test")[:6]


def config(**changes):
    return r1.Config(max_tokens=40, **changes)


@pytest.fixture(scope="module")
def loaded():
    return r1.load_model(config())


@pytest.fixture
def policy(loaded):
    return copy.deepcopy(loaded[0])


def task(policy, tokenizer):
    return r1.Task(tokenizer, policy, config())


def plain_log_probs(model, prompt_ids, token_ids, temperature=1.0, width=None):
    """One row, no padding, no mask, no cache; of the first `width` logits."""
    ids = torch.tensor([prompt_ids + token_ids])
    logits = model(ids).logits[0, len(prompt_ids) - 1 : -1, :width].float() / temperature
    return -torch.nn.functional.cross_entropy(logits, torch.tensor(token_ids), reduction="none")


# ---- The model


def test_a_model_that_changes_its_logits_is_refused(tmp_path, loaded):
    r1.check_scorer(tiny("nemotron"), config())
    policy = tiny("granite", logits_scaling=4.0)
    r1.save_model(policy, loaded[1], tmp_path)
    granite = config(model=str(tmp_path), name=f"{tmp_path}/x", eval_problems=1, steps=1)
    own = lambda _: (policy.bfloat16().train(), loaded[1])
    for start in (r1.load_model, partial(r1.main, load_model=own)):
        with pytest.raises(SystemExit, match="the loss would have other log-probs"):
            start(granite)
    assert not policy.training


GOOD = {"grad_norm": 1.0, "sampling/logp_difference_mean": 0.0, "completions/clipped_ratio": 0.1}
GOOD |= {"reward": 0.6, "frac_reward_zero_std": 0.1}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, []),
        ({"grad_norm": math.nan}, ["--learning_rate"]),
        ({"sampling/logp_difference_mean": 0.2}, ["differ in log-probs"]),
        ({"completions/clipped_ratio": 1}, ["--max_tokens"]),
        ({"reward": 0, "frac_reward_zero_std": 1}, ["no completion has a rew"]),
        ({"frac_reward_zero_std": 1}, ["--group_size"]),
        ({"weights": 10**9}, ["--learning_rate", "--prompt short"]),
    ],
)
def test_the_first_step_says_what_does_not_fit(changes, words):
    size = changes.get("weights", 1_000_000)
    advice = list(r1.advice_on(GOOD | changes, True, size, config()))
    for word, line in zip(words, advice, strict=True):
        assert word in line
    later = list(r1.advice_on(GOOD | changes, False, size, config()))
    assert later == [line for line in advice if line.startswith("WARNING")]


# ---- The sampler


def tiny(kind, **changes):
    """A random model; its embedding has 70 rows more than the tokenizer has tokens."""
    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(
        kind,
        vocab_size=1710,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=0,
        **changes,
    )
    return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()


def test_a_token_is_drawn_with_its_probability():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(20_000, 1)
    uniform = torch.rand(20_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    token, _ = r1.sample_token(logits, 0.8, uniform)
    expected = torch.softmax(logits[0] / 0.8, dim=-1)
    assert (torch.bincount(token, minlength=4) / 20_000 - expected).abs().max() < 0.01
    last, _ = r1.sample_token(logits[:1], 1.0, torch.ones(1, 1, dtype=torch.float64))
    assert last == 3  # not 4, whatever the rounding
    assert set(r1.sample_token(logits, 0.0, uniform)[0].tolist()) == {2}  # greedy


def test_a_stop_text_of_several_tokens_ends_a_completion(loaded):
    the_task = task(*loaded)
    the_task.prompt = the_task.prompt._replace(stop=("=27 yes",))
    ids = loaded[1].encode("13+14=27 yes")
    assert the_task.has_ended(ids) and not the_task.has_ended(ids[:-1])


KINDS = {
    "llama": {},
    "qwen3": {},
    "qwen2": {},
    # The others are sampled by transformers' own forward pass.
    "olmo2": {},
    "gemma": {},
    "gpt2": {"n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "qwen2, sliding": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    # Linear attention and convolutions: a state in the place of keys and values.
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_sampler_s_log_probs_are_those_of_a_plain_forward_pass(kind, loaded, capsys):
    model = tiny(kind.split(",")[0], **KINDS[kind])
    the_task = task(model, loaded[1])
    sampler = r1.TransformersSampler(model, the_task, config())
    own = "transformers' forward pass" not in capsys.readouterr().out
    assert own == (kind in ("llama", "qwen3", "qwen2"))
    the_task.stop_ids = set(range(300))
    prompts = [the_task.prompt_ids(problem) for problem in PROBLEMS]
    together = sampler.generate(prompts, 3, 0.7, range(6))
    assert len({len(token_ids) for token_ids, _ in together}) > 1  # some leave the batch early
    with torch.no_grad():
        for place, (token_ids, log_probs) in enumerate(together):
            # The tokens that only pad the embedding are left out of the draw.
            expected = plain_log_probs(model, prompts[place // 3], token_ids, 0.7, len(loaded[1]))
            assert (torch.tensor(log_probs) - expected).abs().max() < 1e-4
    alone = sampler.generate(prompts[2:3], 3, 0.7, [2])
    assert [ids for ids, _ in together[6:9]] == [ids for ids, _ in alone]


def test_prompts_that_do_not_fit_into_memory_together_are_sampled_in_parts(loaded, monkeypatch):
    def generate_together(prompts, n, temperature, seeds):
        if len(prompts) > 2 or "x" in prompts:
            raise torch.OutOfMemoryError
        return list(zip(prompts, seeds))

    sampler = r1.TransformersSampler(loaded[0], task(*loaded), config())
    monkeypatch.setattr(sampler, "generate_together", generate_together)
    assert sampler.generate("abcdef", 3, 1.0, range(6)) == list(zip("abcdef", range(6)))
    with pytest.raises(torch.OutOfMemoryError):  # a single prompt
        sampler.generate("x", 3, 1.0, range(1))


def test_the_loop_s_model_is_moved_to_the_device(policy, loaded):
    sampler = r1.make_sampler(policy, task(*loaded), torch.device("meta"), config())
    assert sampler.model.device.type == "meta"


def test_a_column_that_the_task_hides_is_never_filled_into_a_prompt(loaded, monkeypatch):
    the_task = task(*loaded)
    the_task.template = "{nums} {target} \\boxed{answer}"
    problem = {"nums": "x^{target}", "target": 3, "answer": "secret"}
    monkeypatch.delattr(the_task.module, "HIDDEN")  # then it is the answer
    # A column's text is not a template: it may be LaTeX.
    assert the_task.prompt_text(problem) == "x^{target} 3 \\boxed{answer}"
    monkeypatch.setattr(the_task.module, "HIDDEN", ("target",), raising=False)
    assert the_task.prompt_text(problem) == "x^{target} {target} \\boxedsecret"


def test_only_long_prompts_are_tokenized_to_leave_out_those_without_room(loaded, monkeypatch):
    the_task = task(*loaded)
    texts = ["[1, 2]", " yes" * 300, "[1, 2]" * 300]  # the second one is long, but of few tokens
    problems = [{"nums": nums, "target": 3} for nums in texts]
    monkeypatch.setattr(countdown_rewards, "load_problems", lambda *_: problems)
    monkeypatch.setattr(the_task, "tokenizer", mock.Mock(wraps=loaded[1]))
    assert the_task.load_problems("train", config()) == problems[:2]
    assert the_task.tokenizer.encode.call_count == 2


def in_template(end, policy, tokenizer):
    """A task and a prompt's text with a chat template that ends with `end`."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "user: {{ messages[0].content }}\nassistant: " + end
    the_task = task(policy, tokenizer)
    return the_task, tokenizer.decode(the_task.prompt_ids({"nums": [1, 2], "target": 3}))


TAGS = ["<think>", "<thought>{{ '\n\n' }}", "[THINK]", "<|begin_of_thought|>"]


@pytest.mark.parametrize("end", TAGS)
def test_the_thinking_ends_with_the_tag_that_the_chat_template_has_opened(end, loaded):
    the_task, text = in_template(end, *loaded)
    tag = end.partition("{")[0]
    assert text.rstrip().endswith(f"3.\nassistant: {tag}")  # no second one
    completion = f"\n{tag[0]}/{tag[1:]}\n<answer>1+2</answer>"
    assert the_task.reward(completion, {"nums": [1, 2], "target": 3}, []) == (2, 1, 1, "correct")


@pytest.mark.parametrize("end", ["<think></think>", "<|assistant|>"])
def test_a_chat_template_that_opens_no_thinking_gets_the_prompt_s_opening(end, loaded):
    assert in_template(end, *loaded)[1].endswith(f"3.\nassistant: {end}<think>")


def test_a_chat_template_that_fails_is_one_sentence(loaded):
    with pytest.raises(SystemExit, match="chat template fails: 26 Jul 2024"):  # on each day
        in_template("{{ raise_exception(strftime_now('%d %b %Y')) }}", *loaded)


def test_tags_that_are_special_tokens_reach_the_reward(loaded):
    tokenizer = copy.deepcopy(loaded[1])
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>", "<answer>"]})
    text = "1+2\n</think>\n<answer>1+2</answer>"
    ids = tokenizer.encode(text + tokenizer.eos_token)
    assert task(loaded[0], tokenizer).text_of(ids) == text
    tokenizer.chat_template = "{{ messages[0].content }}</think>\n"  # now it ends a turn
    assert task(loaded[0], tokenizer).has_ended(tokenizer.encode("1</think>"))


def test_a_model_without_an_end_token_has_no_end(loaded):
    policy, tokenizer = copy.deepcopy(loaded)
    policy.generation_config.eos_token_id = tokenizer.eos_token = None
    assert task(policy, tokenizer).stop_ids == set()


def test_the_tokens_that_a_tokenizer_adds_to_a_prompt():
    tokenizer = mock.Mock(eos_token_id=0, bos_token="<s>")
    tokenizer.encode = lambda text, add_special_tokens: [5] * add_special_tokens + [7, 0]
    assert r1.encode_prompt(tokenizer, "a") == [5, 7]
    # A text's end token stays.
    assert r1.encode_prompt(tokenizer, "<s>a") == r1.encode_prompt(tokenizer, "a", True) == [7, 0]


@pytest.mark.parametrize("bad", [(math.nan, 0, 0), (math.inf, 0, 0), (None, 0, 0), (0, 0, -1), 0.5])
def test_a_reward_that_cannot_be_stops_with_its_completion(bad, loaded, monkeypatch):
    if bad != 0.5:  # which is no Reward
        bad = countdown_rewards.Reward(*bad, "")
    monkeypatch.setattr(countdown_rewards, "reward", lambda *_: bad)
    with pytest.raises(SystemExit, match="finite numbers.*'1\\+2'"):
        task(*loaded).reward("1+2", {"nums": [1, 2], "target": 3}, [])


# ---- The objective


def test_a_mask_that_does_not_fit_its_tokens_is_an_error():
    one = r1.Episode(prompt_ids=[7], token_ids=[5], mask=[True] * 2, log_probs=[-1.0], advantage=1)
    with pytest.raises(ValueError, match="mask"):
        r1.collate([one], CPU)


# ---- The update


def one_update(engine, episodes, config, reference=None):
    r1.update(engine, reference, episodes, config, r1.grpo_loss)
    return engine


def test_a_second_thread_computes_the_same_gradient(monkeypatch):
    found = []
    for threads, kind in (2, r1.TorchEngine), (1, r1.TwoThreadsEngine):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        weights, engine = updated(settings(), make_episodes(), one_update)
        assert type(engine) is kind
        found.append(weights)
    assert found[0] == found[1]
    engine.backward(torch.zeros(()))  # it has no gradient
    with pytest.raises(RuntimeError, match="does not require grad"):
        engine.step()


def test_dropout_is_off_in_the_update(tmp_path):
    """So the policy that is trained is the one that has sampled."""
    dropout = dict.fromkeys(["attention_dropout", "dropout", "layerdrop"], 0.5)
    tiny("opt", word_embed_proj_dim=32, **dropout).save_pretrained(tmp_path)
    shutil.copy(f"{MODEL}/tokenizer.json", tmp_path)
    model, _ = r1.load_model(config(model=str(tmp_path)))
    ids = torch.arange(9)[None]
    before = model(ids).logits
    assert torch.equal(model.train()(ids).logits, before)


def test_a_model_that_routes_at_random_in_training_is_trained_as_it_samples():
    model = tiny("phimoe", num_local_experts=4)
    before = r1.Scorer(copy.deepcopy(model), config())
    engine = r1.make_engine(r1.Scorer(model, config()), CPU, config())
    for batch in r1.update(engine, None, make_episodes(), settings(), r1.grpo_loss):
        with torch.no_grad():
            assert torch.equal(batch["old_log_probs"], before(batch))


@pytest.mark.parametrize("offload", [True, False])
def test_with_offload_the_reference_leaves_the_card_after_the_update(offload):
    reference = mock.Mock(wraps=r1.Scorer(tiny_model(), settings()))
    updated(settings(offload=offload), make_episodes(), partial(one_update, reference=reference))
    (place,) = reference.to.call_args.args  # of the last call; before, it is a torch.device
    assert (place == "cpu") == offload


def test_a_gradient_that_is_not_finite_changes_nothing():
    episodes = make_episodes()
    episodes[0].advantage = float("inf")
    weights, _ = updated(settings(), episodes, one_update)
    assert weights == weights_of(tiny_model())


def test_bfloat16_samples_as_it_scores(policy, loaded, monkeypatch):
    next_logits = mock.Mock(wraps=r1.next_logits)
    monkeypatch.setattr(r1, "next_logits", next_logits)
    short = config(dtype="bfloat16")
    the_task = task(*loaded)
    sampler = r1.TransformersSampler(policy, the_task, short)
    batch = r1.collate(r1.sample_and_reward(sampler, PROBLEMS, the_task, short, "", 4), CPU)
    difference = (r1.Scorer(policy, short)(batch) - batch["sampler_log_probs"]).abs()
    assert 1e-6 < difference.sum() / batch["response_mask"].sum() < 0.02
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert {call.args[-1].dtype for call in next_logits.call_args_list} == {torch.bfloat16}


def measured(engine, episodes, config):
    reference = variants.make_reference(None, config)  # these settings need none
    batches = variants.update(engine, reference, episodes, config, variants.loss)
    return r1.measure_step(r1.as_rows(episodes), batches, engine, 1, config)


def test_a_penalty_without_a_reference_is_not_measured():
    config = settings(kl_coef=0.1, kl_estimator="sampler_k2")
    _, metrics = updated(config, make_episodes(), measured)
    assert metrics["kl"] == 0 and metrics["loss"] != 0


@pytest.mark.parametrize("loss_type", ["grpo_clip", "dppo"])
def test_unknown_log_probs_of_the_sampler_are_not_taken_for_0(loss_type):
    episodes = [r1.Episode(prompt_ids=[1], token_ids=[2, 3], advantage=1.0) for _ in range(2)]
    _, metrics = updated(settings(loss_type=loss_type), episodes, measured)
    assert math.isnan(metrics["loss"]) == (loss_type == "dppo")  # which is computed from them
    assert metrics["sampling/logp_difference_mean"] == 0.0 and metrics["entropy"] > 0


def test_a_step_of_which_no_token_is_trained_is_measured():
    episodes = make_episodes()
    for e in episodes:
        e.mask = [False] * len(e.mask)
    _, metrics = updated(settings(), episodes, measured)
    assert metrics["loss"] == metrics["entropy"] == metrics["grad_norm"] == 0


# ---- Nothing of a model or checkpoint is executed


def changed_model(tmp_path, changes, file="config.json"):
    """The settings for a copy of the model, with changes in one of its json files."""
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps(content | changes))
    return config(model=str(tmp_path))


def test_nothing_of_a_model_is_executed(tmp_path):
    names = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    coded = changed_model(tmp_path, {"model_type": "evil", "auto_map": names})
    (tmp_path / "evil.py").write_text(f"open('{tmp_path}/ran', 'w')")
    with pytest.raises(SystemExit, match="--model"):
        r1.load_model(coded)
    pickled = changed_model(tmp_path, {})
    weights = r1.load_model(pickled)[0].state_dict()
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(SystemExit, match="--model"):
        r1.load_model(pickled)
    assert not (tmp_path / "ran").exists()


class Poison:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_a_checkpoint_that_would_run_code_is_refused(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine = r1.make_engine(r1.Scorer(policy, config()), CPU, config())
    torch.save([Poison(), {}], "a.pt")
    with pytest.raises(Exception, match="[Ww]eights"):
        engine.load_checkpoint(".", "a")
    assert not os.path.exists("ran")


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_in_a_model_is_one_sentence(file, tmp_path):
    changed = changed_model(tmp_path, {})
    (tmp_path / file).write_text("version https://git-lfs.github.com/spec/v1\noid 4d7a\nsize 131\n")
    with pytest.raises(SystemExit, match="--model .* git-lfs"):
        r1.load_model(changed)


def test_a_quantized_model_is_refused(tmp_path):
    quantized = {"quantization_config": {"quant_method": "gptq"}}
    changed = changed_model(tmp_path, quantized)
    with pytest.raises(SystemExit, match="it is quantized"):
        r1.load_model(changed)


def test_a_learned_buffer_is_saved(tmp_path, loaded):
    model = tiny("lfm2_moe", layer_types=["conv", "full_attention"], num_dense_layers=0)
    model.get_buffer("model.layers.0.feed_forward.expert_bias").normal_()
    r1.save_model(model, loaded[1], tmp_path)
    saved, _ = r1.load_model(config(model=str(tmp_path)))
    ids = torch.arange(9)[None]
    assert torch.equal(saved(ids).logits, model(ids).logits)


def test_a_model_is_saved_with_any_generation_config(tmp_path):
    """Vicuna and the first Llama 2 have such a temperature; transformers saves none of these."""
    changes = {"temperature": 0.9, "length_penalty": 2.0, "pad_token_id": -1}
    changed = changed_model(tmp_path, changes, "generation_config.json")
    r1.save_model(*r1.load_model(changed), f"{tmp_path}/saved")
    saved = json.loads((tmp_path / "saved/generation_config.json").read_text())
    assert saved | changes == saved
    r1.load_model(config(model=f"{tmp_path}/saved"))
