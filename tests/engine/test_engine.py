"""The engine in custom loops (E1, E4-E9): equal to bare loops, in every way it is used."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs.engine import Engine

from .references import OPTIMIZERS, bare_loop, flat, net, regression

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def run_engine(engine, model, opt, loader, epochs, loss_fn=F.mse_loss):
    """The loop of the README; returns each step's loss and whether it changed parameters."""
    model, opt, loader = engine.prepare(model, opt, loader)
    found = []
    for _ in range(epochs):
        for x, y in loader:
            with engine.accumulate(model, n_samples=len(x)):
                with engine.autocast():
                    loss = loss_fn(model(x), y)
                engine.backward(loss)
                found.append((loss.item(), engine.step(opt)))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_plain_loop_equals_a_bare_loop_to_the_last_bit(name):
    x, y = regression(22)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    ours, theirs = net(), net()
    with Engine(device="cpu") as engine:
        found = run_engine(engine, ours, OPTIMIZERS[name](ours.parameters()), loader, 3)
    losses = bare_loop(theirs, OPTIMIZERS[name](theirs.parameters()), list(loader), 3)
    assert found == [(loss, True) for loss in losses]
    assert torch.equal(flat(ours), flat(theirs))


def test_a_shuffled_loader_of_one_process_keeps_torchs_own_order():
    x, y = regression(22)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    ours, theirs = net(), net()
    torch.manual_seed(3)
    with Engine(device="cpu") as engine:
        run_engine(engine, ours, OPTIMIZERS["sgd"](ours.parameters()), loader, 3)
    torch.manual_seed(3)
    opt = OPTIMIZERS["sgd"](theirs.parameters())
    for _ in range(3):
        bare_loop(theirs, opt, loader, 1)
    assert torch.equal(flat(ours), flat(theirs))


def test_with_a_seed_the_order_depends_on_seed_and_epoch_only():
    """E1, E12"""
    data = TensorDataset(torch.arange(12.0))

    def orders(seed, disturb):
        with Engine(device="cpu", seed=seed) as engine:
            loader = engine.prepare(DataLoader(data, batch_size=4, shuffle=True))
            found = []
            for _ in range(3):
                torch.rand(disturb)
                found.append(torch.cat([batch[0] for batch in loader]).tolist())
            loader.set_epoch(1)
            assert torch.cat([batch[0] for batch in loader]).tolist() == found[1]
            return found

    one = orders(7, 1)
    assert one == orders(7, 5)
    assert one[0] != one[1] != one[2]
    assert one != orders(8, 1)
    assert all(sorted(order) == list(range(12)) for order in one)


def test_bf16_equals_a_bare_autocast_loop_to_the_last_bit():
    x, y = regression(20)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    ours, theirs = net(), net()
    with Engine(device="cpu", precision="bf16") as engine:
        run_engine(engine, ours, OPTIMIZERS["adam"](ours.parameters()), loader, 3)
    opt = OPTIMIZERS["adam"](theirs.parameters())
    for _ in range(3):
        for a, b in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(theirs(a), b)
            opt.zero_grad()
            loss.backward()
            opt.step()
    assert torch.equal(flat(ours), flat(theirs))


def test_fp16_equals_a_bare_loop_with_a_scaler_to_the_last_bit():
    x, y = regression(20)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    ours, theirs = net(), net()
    with Engine(device="cpu", precision="fp16") as engine:
        run_engine(engine, ours, OPTIMIZERS["adam"](ours.parameters()), loader, 3)
        state = engine.state_dict()["scaler"]
    opt, scaler = OPTIMIZERS["adam"](theirs.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(3):
        for a, b in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(theirs(a), b)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    assert torch.equal(flat(ours), flat(theirs))
    assert state == scaler.state_dict()


def test_the_autocast_cache_is_not_stale_when_weights_change_inside_autocast():
    x, y = regression(8)
    ours, theirs = net(), net()
    opt = OPTIMIZERS["sgd"](ours.parameters())
    with Engine(device="cpu", precision="bf16") as engine:
        engine.prepare(ours, opt)
        with engine.accumulate(ours), engine.autocast():
            for _ in range(3):
                engine.backward(F.mse_loss(ours(x), y))
                engine.step(opt)
    opt = OPTIMIZERS["sgd"](theirs.parameters())
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(theirs(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    assert torch.equal(flat(ours), flat(theirs))


class Exploding(nn.Module):
    """Two parameters; the second's gradient is not finite when asked for."""

    def __init__(self):
        super().__init__()
        self.good = nn.Parameter(torch.ones(3))
        self.bad = nn.Parameter(torch.ones(3))

    def forward(self, factor):
        return (self.good * 2).sum() + (self.bad * factor).sum()


def two_optimizers(model):
    return torch.optim.SGD([model.good], lr=0.1), torch.optim.SGD([model.bad], lr=0.1)


def test_only_the_optimizer_that_overflowed_skips_and_the_scale_moves_once():
    """E4, E7"""
    model = Exploding()
    good, bad = two_optimizers(model)
    with Engine(device="cpu", precision="fp16") as engine:
        engine.prepare(model, good, bad)
        before = engine.state_dict()["scaler"]["scale"]
        steps = []
        for factor in (1.0, float("inf"), 1.0):
            with engine.accumulate(model):
                engine.backward(model(factor))
                steps.append((engine.step(good), engine.step(bad)))
        after = engine.state_dict()["scaler"]["scale"]
    assert steps == [(True, True), (True, False), (True, True)]
    assert after == before / 2
    torch.testing.assert_close(model.good.detach(), torch.full((3,), 1 - 3 * 0.2))
    torch.testing.assert_close(model.bad.detach(), torch.full((3,), 1 - 2 * 0.1))


def test_each_window_updates_the_scale_just_once(monkeypatch):
    """E4"""
    model = Exploding()
    good, bad = two_optimizers(model)
    with Engine(device="cpu", precision="fp16", gradient_accumulation_steps=2) as engine:
        engine.prepare(model, good, bad)
        updates = []
        scaler = engine._precision.scaler
        original = scaler.update
        monkeypatch.setattr(scaler, "update", lambda *new: (updates.append(1), original(*new)))
        for _ in range(6):
            with engine.accumulate(model, n_samples=1):
                engine.backward(model(1.0))
                engine.step(good), engine.step(bad)
    assert len(updates) == 3


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_several_backwards_and_steps_in_one_scope(precision):
    """E7: as a GAN does it, with several steps of the critic."""
    x, _ = regression(8)

    def train(backward, step, critic, maker):
        for _ in range(2):
            for _ in range(3):
                critic[1].zero_grad()
                backward(critic[0](x).mean() - critic[0](maker[0](x)).mean())
                step(critic[1])
            maker[1].zero_grad(), critic[1].zero_grad()
            backward(critic[0](maker[0](x)).mean())
            step(maker[1])

    def parts():
        critic, maker = net(1), net(2, outputs=4)
        return (critic, OPTIMIZERS["sgd"](critic.parameters())), (maker, OPTIMIZERS["sgd"](maker.parameters()))

    critic, maker = parts()
    with Engine(device="cpu", precision=precision) as engine:
        engine.prepare(critic[0], critic[1], maker[0], maker[1])
        with engine.accumulate():
            train(engine.backward, engine.step, critic, maker)
    theirs = parts()
    train(lambda loss: loss.backward(), lambda opt: opt.step(), *theirs)
    # the loss scale is a power of two: it changes no bit
    assert torch.equal(flat(critic[0]), flat(theirs[0][0]))
    assert torch.equal(flat(maker[0]), flat(theirs[1][0]))


def test_gradients_that_wait_follow_the_scale():
    """A scale that moves between two backwards must not mix scales in one gradient."""
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    first, second = torch.optim.SGD([one], lr=1.0), torch.optim.SGD([other], lr=1.0)
    with Engine(device="cpu", precision="fp16") as engine:
        engine.prepare(first, second)
        with engine.accumulate():
            engine.backward((one * float("inf")).sum() + (other * 2).sum())  # overflows: the scale will be halved
            assert engine.step(first) is False
            engine.backward((other * 3).sum())
            assert engine.step(second) is True
    torch.testing.assert_close(other.detach(), torch.full((2,), 1.0 - 5.0))


class Bomb(Exception):
    pass


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("error", [Bomb, KeyboardInterrupt])
@pytest.mark.parametrize("at", ["forward", "backward", "step"])
def test_an_interrupted_window_leaves_nothing_behind(precision, error, at):
    """E9: finished updates stay, and the next window is exact."""
    x, y = regression(12)

    def run(engine, model, opt, interrupted):
        first, second = (x[:4], y[:4]), (x[4:8], y[4:8])
        bomb = second if interrupted else None
        for window in ([first, second], [second, first]) if interrupted else ([second, first],):
            try:
                for a, b in window:
                    with engine.accumulate(model, n_samples=len(a)):
                        if bomb and a is bomb[0] and at == "forward":
                            raise error
                        with engine.autocast():
                            loss = F.mse_loss(model(a), b)
                        engine.backward(loss)
                        if bomb and a is bomb[0] and at == "backward":
                            raise error
                        if bomb and a is bomb[0] and at == "step":
                            engine.clip_grad_norm(opt, 1e9)
                            raise error
                        engine.step(opt)
            except error:
                assert all(each.grad is None for each in model.parameters())
                bomb = None

    models = net(), net()
    for model, interrupted in zip(models, (True, False)):
        with Engine(device="cpu", precision=precision, gradient_accumulation_steps=2) as engine:
            opt = OPTIMIZERS["momentum"](model.parameters())
            engine.prepare(model, opt)
            run(engine, model, opt, interrupted)
    assert torch.equal(flat(models[0]), flat(models[1]))


def test_no_sync_does_nothing_in_one_process():
    """E6"""
    model = net()
    with Engine(device="cpu") as engine:
        engine.prepare(model)
        with engine.no_sync(model), engine.no_sync():
            engine.backward(model(torch.ones(1, 4)).sum())
    assert all(each.grad is not None for each in model.parameters())


def test_collectives_are_the_identity_in_one_process():
    """E11"""
    data = {"a": torch.ones(2), "b": [3]}
    with Engine(device="cpu") as engine:
        engine.barrier()
        assert engine.reduce(data) is data
        assert engine.gather(data) is data
        assert engine.broadcast(data) is data
        assert engine.gather_object("x") == ["x"]
        assert engine.broadcast_object("x") == "x"
        with engine.main_process_first():
            assert (engine.rank, engine.local_rank, engine.world_size, engine.is_main) == (0, 0, 1, True)
        with pytest.raises(ZeroDivisionError), engine.main_process_first():
            raise ZeroDivisionError


def test_prepare_returns_what_it_was_given_in_order():
    model = net()
    opt = OPTIMIZERS["sgd"](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
    with Engine(device="cpu") as engine:
        assert engine.prepare(scheduler, opt, model) == (scheduler, opt, model)
        assert engine.prepare(model) is model
        with pytest.raises(TypeError, match="got list"):
            engine.prepare([model])


def test_arguments_out_of_range_are_refused():
    """E1, E4"""
    with pytest.raises(ValueError, match=r"\['bf16', 'fp16', 'fp32'\], got 'fp8'"):
        Engine(device="cpu", precision="fp8")
    for steps in (0, -1, 1.5, "2"):
        with pytest.raises(ValueError, match="at least 1, got"):
            Engine(device="cpu", gradient_accumulation_steps=steps)
    with pytest.raises(ValueError, match="seed"):
        Engine(device="cpu", seed=-1)


def test_close_may_be_called_again():
    """E1"""
    engine = Engine(device="cpu")
    engine.close()
    engine.close()


@pytest.mark.parametrize("environment", [{"RANK": "0"}, {"WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_a_partial_environment_is_refused(monkeypatch, environment):
    """E10"""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="is missing"):
        Engine(device="cpu")


def test_a_job_of_one_process_under_torchrun_needs_no_group(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with Engine(device="cpu") as engine:
        assert engine.world_size == 1


@needs_cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loop_never_waits_for_the_device(precision):
    """F4, R8"""
    x, y = regression(64)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, pin_memory=True)
    model = net().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with Engine(precision=precision) as engine:
        model, opt, loader = engine.prepare(model, opt, loader)
        batches = list(loader)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for a, b in batches:
                with engine.accumulate(model, n_samples=len(a)):
                    with engine.autocast():
                        loss = F.mse_loss(model(a), b)
                    engine.backward(loss)
                    engine.step(opt)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("timeout", [0, -1, "5", True])
def test_a_timeout_that_is_no_time_is_an_error(timeout):
    with pytest.raises(ValueError, match="`timeout` in `ddp_options`.*above 0"):
        Engine(device="cpu", ddp_options={"timeout": timeout})
