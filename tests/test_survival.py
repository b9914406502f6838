"""Runs that survive: checkpoints of every engine, damaged ones, signals, full disks, updates that are not finite."""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
from test_run import SMALL, nano_r1, records
from test_update import DEVICE, WORLD, config, make_episodes, tiny_model

import nano_r1 as r1


@pytest.fixture(scope="module", autouse=True)
def processes():
    r1.start_processes()


@pytest.fixture(scope="module")
def tokenizer():
    return r1.load_tokenizer("models/nano-base")


def weights(engine):
    with r1.gathered(engine.module):
        return [p.detach().clone() for p in engine.module.parameters()]


ENGINES = [{"zero_stage": stage, "dtype": dtype} for stage in (0, 1, 2, 3) for dtype in ("float32", "bfloat16")]
ENGINES += [{"zero_stage": stage, "offload": True} for stage in (2, 3)]


def engine_of(model, c):
    for p in model.parameters():  # and not the buffers, which from_pretrained keeps in float32
        p.data = p.data.to(getattr(torch, c.dtype))
    return r1.make_engine(model, c)


@pytest.mark.parametrize("changes", ENGINES, ids=str)
def test_a_restored_engine_goes_on_bit_for_bit(changes, tokenizer, tmp_path):
    c = config(**changes)
    engine = engine_of(tiny_model(), c)
    for seed in (0, 1):
        r1.update_policy(engine, make_episodes(seed=seed), c, DEVICE, WORLD)
    r1.save_checkpoint(engine, tokenizer, str(tmp_path), 2, c)
    r1.update_policy(engine, make_episodes(seed=2), c, DEVICE, WORLD)
    path, step = r1.newest_checkpoint(str(tmp_path), c)
    other = r1.make_engine(r1.load_policy(c, path), c)
    r1.restore_optimizer(other, path)
    r1.update_policy(other, make_episodes(seed=2), c, DEVICE, WORLD)
    assert step == 2
    for p, q in zip(weights(engine), weights(other)):
        assert torch.equal(p, q)


@pytest.mark.parametrize("changes", ENGINES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_not_applied(changes, bad):
    c = config(**changes)
    engine = engine_of(tiny_model(), c)
    r1.update_policy(engine, make_episodes(), c, DEVICE, WORLD)
    before = weights(engine)
    episodes = make_episodes(seed=1)
    episodes[1].advantage = bad
    measured = r1.update_policy(engine, episodes, c, DEVICE, WORLD)
    assert measured["bad_updates"] == 1
    for p, q in zip(before, weights(engine)):
        assert torch.equal(p, q)
    measured = r1.update_policy(engine, make_episodes(seed=1), c, DEVICE, WORLD)  # and the next one is
    assert measured["bad_updates"] == 0 and measured["grad_norm"] > 0
    assert not all(torch.equal(p, q) for p, q in zip(before, weights(engine)))


@pytest.fixture
def checkpoints(tokenizer, tmp_path):
    """A directory with checkpoints of steps 1 and 2, and the settings."""
    c = config()
    engine = engine_of(tiny_model(), c)
    for step in (1, 2):
        r1.save_checkpoint(engine, tokenizer, str(tmp_path), step, c)
    return tmp_path, c


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)


def flip(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


FILES = ["optimizer_000.safetensors", "policy/model.safetensors", "policy/config.json", "settings.json"]


HARMS = [(harm, file) for harm in (cut, flip, os.remove) for file in FILES]
HARMS += [(cut, "checksums.json"), (os.remove, "checksums.json")]


@pytest.mark.parametrize(["harm", "file"], HARMS, ids=lambda value: getattr(value, "__name__", value))
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(checkpoints, harm, file, capsys):
    directory, c = checkpoints
    harm(directory / "step_000002" / file)
    path, step = r1.newest_checkpoint(str(directory), c)
    assert step == 1 and "step_000002 is passed over" in capsys.readouterr().out


def test_without_any_whole_checkpoint_the_run_stops_rather_than_begin_again(checkpoints):
    directory, c = checkpoints
    for name in ("step_000001", "step_000002"):
        cut(directory / name / "checksums.json")
    with pytest.raises(r1.UserError, match="is whole"):
        r1.newest_checkpoint(str(directory), c)


def test_a_checkpoint_of_other_settings_is_refused(checkpoints):
    directory, c = checkpoints
    with pytest.raises(r1.UserError, match="another --learning_rate: 0.01 instead of 0.5"):
        r1.newest_checkpoint(str(directory), config(learning_rate=0.5))
    assert r1.newest_checkpoint(str(directory), config(steps=999))[1] == 2


def test_a_checkpoint_of_more_processes_is_refused(checkpoints):
    directory, c = checkpoints
    torch.manual_seed(0)
    engine = engine_of(torch.nn.Sequential(torch.nn.Linear(3, 3)), c)
    with pytest.raises(r1.UserError, match="another number of processes"):
        r1.restore_optimizer(engine, str(directory / "step_000002"))


def test_nothing_in_a_checkpoint_or_a_model_is_unpickled(checkpoints, tmp_path):
    """A pickle that would leave a mark when read: beside the weights, and in their place."""
    directory, c = checkpoints

    class Mark:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "mark"),)

    newest = directory / "step_000002"
    for name in ("pytorch_model.bin", "policy/pytorch_model.bin", "optimizer_000.pt", "policy/training_args.bin"):
        (newest / name).write_bytes(pickle.dumps(Mark()))
    path, _ = r1.newest_checkpoint(str(directory), c)
    engine = r1.make_engine(r1.load_policy(c, path), c)
    r1.restore_optimizer(engine, path)
    os.remove(newest / "policy" / "model.safetensors")
    assert r1.newest_checkpoint(str(directory), c)[1] == 1
    with pytest.raises(r1.UserError):
        r1.load_model(str(newest / "policy"), "float32")
    assert not (tmp_path / "mark").exists()


def test_old_checkpoints_are_deleted_and_leftovers_too(checkpoints, tokenizer):
    directory, c = checkpoints
    engine = engine_of(tiny_model(), c)
    (directory / ".step_000003.tmp" / "policy").mkdir(parents=True)
    r1.save_checkpoint(engine, tokenizer, str(directory), 3, config(keep_checkpoints=1))
    assert os.listdir(directory) == ["step_000003"]


def test_after_a_damaged_checkpoint_was_passed_over_the_good_ones_are_kept(tmp_path):
    """Checkpoint 4 is damaged, the run goes on from 2 and saves 3: neither may be thrown away for the sake of 4."""
    done = nano_r1("--out", tmp_path, "--name", "d", "--steps", 4, *SMALL, "--eval_problems", 2)
    assert done.returncode == 0, done.stderr
    cut(tmp_path / "d" / "checkpoints" / "step_000004" / "optimizer_000.safetensors")
    less = ["--micro_batch_tokens", 4096, "--save_every", 1, "--keep_checkpoints", 1]
    done = nano_r1("--resume", tmp_path / "d", "--steps", 3, *less)
    assert done.returncode == 0, done.stderr
    assert "step_000004 is passed over: optimizer_000.safetensors is missing, cut short or changed" in done.stdout
    assert os.listdir(tmp_path / "d" / "checkpoints") == ["step_000003"]
    assert [row["step"] for row in records(tmp_path / "d")] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["model", "model/"])
def test_a_directory_is_replaced_whole_or_left_alone(name, tmp_path):
    path = str(tmp_path / name)
    for content in ("old", "new"):
        with r1.written_whole(path) as hidden:
            os.makedirs(hidden)
            with open(os.path.join(hidden, "file"), "w") as file:
                file.write(content)
        assert (tmp_path / "model" / "file").read_text() == content
    with pytest.raises(r1.UserError, match="could not be written"):
        with r1.written_whole(path) as hidden:
            os.makedirs(hidden)
            raise OSError("no room")
    assert (tmp_path / "model" / "file").read_text() == "new" and os.listdir(tmp_path) == ["model"]


def start(*args, **options):
    command = [sys.executable, "-u", "nano_r1.py", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_for(process, text):
    for line in process.stdout:
        if line.startswith(text):
            return
    raise AssertionError(process.stderr.read())


def listening_addresses(pid):
    """Local addresses in state LISTEN that belong to the process, as /proc/net/tcp writes them."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found += [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
    return found


def test_a_signal_ends_the_step_and_saves(tmp_path):
    """And a single process cannot be reached from another machine: gloo listens, but on 127.0.0.1 alone."""
    number = signal.SIGTERM
    process = start("--out", tmp_path, "--name", "s", "--steps", 200, *SMALL, "--save_every", 0, "--keep_checkpoints", 1)
    wait_for(process, "step    2/200")
    assert set(listening_addresses(process.pid)) <= {"0100007F", "00000000000000000000000001000000"}
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number and error == ""
    (name,) = os.listdir(tmp_path / "s" / "checkpoints")
    step = int(name.removeprefix("step_"))
    assert f"Saved after step {step}: --resume {tmp_path}/s goes on." in out
    assert [row["step"] for row in records(tmp_path / "s")] == list(range(step + 1))


def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    process = start("--out", tmp_path, "--name", "s", "--steps", 200, "--questions", 128, "--eval_problems", 16)
    wait_for(process, "evaluation after step 0")
    time.sleep(1)  # within step 1, which takes far longer than what follows
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(1.5)
    assert process.wait(timeout=5) == 130
    assert "Interrupted. --resume" in process.stderr.read() and "Saved" not in process.stdout.read()


def test_a_disk_without_room_gets_one_sentence_and_the_last_checkpoint_is_kept(tmp_path):
    """The kernel refuses files beyond 1 MiB: metrics and episodes fit, weights do not."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    process = start("--out", tmp_path, "--name", "f", "--steps", 3, *SMALL, "--save_every", 1, preexec_fn=limit)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2 and "could not be written" in error and len(error.splitlines()) == 1
    assert os.listdir(tmp_path / "f" / "checkpoints") == []
    done = nano_r1("--resume", tmp_path / "f", "--steps", 2)
    assert done.returncode == 0 and [row["step"] for row in records(tmp_path / "f")] == [0, 1, 2]


def test_a_directory_that_cannot_be_written_gets_one_sentence():
    done = nano_r1("--out", "/sys/nano_r1", *SMALL)
    assert done.returncode == 2 and "could not be written" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_full_disk_under_the_metrics_gets_one_sentence(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "metrics.jsonl").symlink_to("/dev/full")
    done = nano_r1("--out", tmp_path, "--name", "m", *SMALL)
    assert done.returncode == 2 and "metrics.jsonl could not be written: No space left" in done.stderr


def test_a_run_whose_updates_are_not_finite_stops_and_keeps_the_batch(tmp_path):
    options = ["--learning_rate", "1e30", "--warmup_steps", 0, "--kl_coef", 0.01, "--max_bad_steps", 2, "--save_every", 0]
    done = nano_r1("--out", tmp_path, "--name", "n", *SMALL, *options)
    assert done.returncode == 2 and "2 steps in a row were not finite" in done.stderr
    assert done.stdout.count("WARNING: loss or gradient not finite") == 2
    batches = sorted(p.name for p in (tmp_path / "n").glob("bad_step_*.jsonl"))
    assert len(batches) == 2 and f"{tmp_path}/n/{batches[-1]}" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "n" / batches[0]).read_text().splitlines()]
    assert len(rows) == 16 and all(len(row["token_ids"]) == row["length"] and row["prompt_ids"] for row in rows)


def test_memory_that_runs_out_says_what_to_lower():
    with pytest.raises(r1.UserError, match=r"Out of memory in the update: lower --micro_batch_tokens \(now 77\)"):
        with r1.Clock(config(micro_batch_tokens=77))("update"):
            torch.empty(2**58)  # more than any machine has: torch's CPU allocator refuses
    for part, says in (("rollout", "lower --vllm_memory"), ("start", "take --lora_rank 16"), ("reward", "--questions")):
        with pytest.raises(r1.UserError, match=says):
            with r1.enough_memory(part, config()):
                raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="shape"):
        with r1.Clock(config())("update"):
            torch.empty(2) @ torch.empty(3, 3)


def test_the_memory_plan_counts_weights_gradients_and_adamw():
    model = tiny_model()
    count = sum(p.numel() for p in model.parameters())
    always, in_turn, available = r1.memory_plan(model, config(), 1, 100, DEVICE)
    assert always == {"weights": 4 * count, "gradients": 4 * count, "AdamW": 12 * count} and available > 2**28
    # 512 completions of 100 tokens, 2 layers, keys and values of 1 head of 8; 60 tokens of 2 layers x 16 and 50 logits
    assert in_turn == {"KV cache": 512 * 100 * 2 * 2 * 8 * 4, "activations and logits": 60 * 32 * 68 + 16 * 60 * 50}
    sharded = config(dtype="bfloat16", zero_stage=3, kl_coef=0.1)
    always, _, _ = r1.memory_plan(model, sharded, 2, 100, DEVICE)
    parts = {"weights": count, "reference": 2 * count, "sampler's copy": 2 * count, "gradients": count}
    assert always == {**parts, "AdamW": 6 * count}
    assert "AdamW" not in r1.memory_plan(model, config(offload=True), 1, 100, DEVICE)[0]


def test_check_sync_stops_a_run_whose_sampler_has_other_weights(tokenizer):
    import countdown_rewards as task

    c = r1.Config(max_tokens=40)
    policy = r1.load_model(c.model, "float32")
    rollout = r1.TransformersRollout(r1.load_model(c.model, "float32"), [0], 0, tokenizer)
    problems = task.generate_problems("test", 3, 0)
    check = lambda: r1.check_sync(rollout, policy, problems, task, tokenizer, c, DEVICE, 0, 1)
    check()
    torch.manual_seed(0)
    with torch.no_grad():
        policy.model.layers[2].mlp.up_proj.weight.add_(0.05 * torch.randn_like(policy.model.layers[2].mlp.up_proj.weight))
    with pytest.raises(r1.UserError, match="does not have the trainer's weights"):
        check()
    rollout.sync_weights(policy)
    check()


@pytest.mark.parametrize("stage", [2, 3])
def test_the_proof_of_the_sync_moves_the_weights_and_puts_them_back(stage, tokenizer):
    """A sync that is skipped fails it whatever the learning rate; one that works leaves no trace."""
    import countdown_rewards as task

    c = r1.Config(max_tokens=20, zero_stage=stage)
    policy = r1.load_model(c.model, "float32")
    sampler = r1.TransformersRollout(r1.load_model(c.model, "float32"), [0], 0, tokenizer)
    engine = r1.make_engine(policy, c)
    before = weights(engine)
    problems = task.generate_problems("test", 3, 0)
    check = lambda: r1.check_sync(sampler, engine, problems, task, tokenizer, c, DEVICE, 0, 1)
    r1.prove_sync(sampler, policy, check)
    for p, q in zip(before, weights(engine)):
        assert torch.equal(p, q)
    sampler.sync_weights = lambda policy: None
    with pytest.raises(r1.UserError, match="does not have the trainer's weights"):
        r1.prove_sync(sampler, policy, check)
