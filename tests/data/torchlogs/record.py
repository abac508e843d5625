"""Record what torch logs when a small program breaks the graph or recompiles.

How the logs beside this file were made, once for each release, from the root of the project:

    PYTHON tests/data/torchlogs/record.py

where PYTHON is an interpreter that has the release of torch (2.6.0 and 2.13.0 here). The script needs
torch and nothing else. It writes `RELEASE/CASE.log` beside itself, one file for each function in `CASES`,
and removes the logs of cases that no longer exist. A log is what torch's own stream handlers print under
`TORCH_LOGS=graph_breaks,recompiles`, unaltered but for folders: the project, the installed torch, the
temporary folder and the home folder appear as `$PROJECT`, `$TORCH`, `$TMP`, `$HOME`. Clock times and
process ids are those of the recording.

The logs name lines of this file, so whoever edits it records both releases again. The backend is `eager`:
guards, breaks and log lines are Dynamo's, and nothing is generated or built.
"""

import io
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils._traceback import shorten_filename

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
FLAG = 1
TABLE = {"scale": 2.0}


def compiled(function, dynamic=False):
    """Compile without Inductor; static unless a case is about the dynamic policy."""
    return torch.compile(function, backend="eager", dynamic=dynamic)


def calls(function, *arguments, dynamic=False):
    """Compile `function` and call it once with each of `arguments` (a tuple is unpacked)."""
    run = compiled(function, dynamic)
    for each in arguments:
        run(*each) if isinstance(each, tuple) else run(each)


# Graph breaks.


def clean():
    calls(lambda x: x * 2, torch.ones(4), torch.ones(4))


def break_on_item_branch():
    def branch(x):
        if x.sum().item() > 0:
            return x + 1
        return x - 1

    calls(branch, torch.ones(4))


def break_on_tensor_branch():
    def branch(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    calls(branch, torch.ones(4))


def break_on_print():
    def observed(x):
        x = x.sin()
        print(float(x.mean()))
        return x.cos()

    calls(observed, torch.ones(4))


def break_on_print_call():
    def observed(x):
        x = x.sin()
        print("half way")
        return x.cos()

    calls(observed, torch.ones(4))


@torch.compiler.disable
def report(x):
    return float(x.mean())


def break_on_disabled_helper():
    def observed(x):
        x = x.sin()
        report(x)
        return x.cos()

    calls(observed, torch.ones(4))


def break_before_blocks():
    def model(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    calls(model, torch.ones(4))


def break_in_inlined_helper():
    def peak(x):
        return x.max().item()

    def normalise(x):
        return x / peak(x)

    calls(normalise, torch.ones(4))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == 1:
                torch._dynamo.graph_break()
        return x


def break_on_branch_in_helper():
    """Dynamo cannot resume inside a helper: the helper runs as a frame of its own, and breaks once more."""

    def sign(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    def model(x):
        return sign(x) * 2

    calls(model, torch.ones(4))


def break_in_loop():
    calls(Stack(), torch.ones(2, 4))


def break_in_loop_on_item():
    def early_exit(x):
        for _ in range(3):
            x = x / 2
            if x.sum().item() < 1:
                break
        return x

    calls(early_exit, torch.ones(4))


def break_repeated():
    """The second variant meets the same break: torch logs it again, without the user's stack."""

    def branch(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    calls(branch, torch.ones(4), torch.ones(5))


def break_in_with_block():
    def guarded(x):
        with torch.autocast("cpu", enabled=False):
            x = x + 1
            print("half way")
        return x * 2

    calls(guarded, torch.ones(4))


def break_in_try_block():
    def tried(x):
        try:
            x = x + 1
            print("half way")
        except ValueError:
            x = x - 1
        return x * 2

    calls(tried, torch.ones(4))


def break_skips_frame():
    """Sparse tensors are refused before anything is traced: the frame is given up as a whole."""
    calls(lambda x: x + x, torch.ones(4, 4).to_sparse())


# Recompiles, one for each kind of assumption.


def scaled(x):
    return x * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, idx):
        return self.table(idx).sum(-1)


def shape_of_argument():
    calls(Model(), torch.zeros(1, 60, dtype=torch.int64), torch.zeros(1, 63, dtype=torch.int64))


def shape_rank():
    calls(scaled, torch.ones(4), torch.ones(4, 4))


def shape_of_parameter():
    model = Block()
    run = compiled(model)
    run(torch.ones(2, 4))
    model.linear.weight = nn.Parameter(torch.ones(8, 4))
    model.linear.bias = nn.Parameter(torch.ones(8))
    run(torch.ones(2, 4))


def shape_of_list_item():
    same = [torch.ones(4), torch.ones(4)]
    longer = [torch.ones(4), torch.ones(5)]
    calls(lambda xs: xs[0] + xs[1].sum(), (same,), (longer,))


def shape_duck_equality():
    """Equal sizes share one symbol under the dynamic policy; unequal ones break the equality."""
    equal = torch.ones(4, 2), torch.ones(3, 4)
    unequal = torch.ones(5, 2), torch.ones(3, 1)
    calls(lambda x, y: x.sum(1) * y.sum(0), equal, unequal, dynamic=True)


def shape_range():
    def branch(x):
        return x + 1 if x.size(0) > 8 else x - 1

    calls(branch, torch.ones(10), torch.ones(5), dynamic=True)


def shape_zero_one():
    """Sizes 0 and 1 are compiled for themselves even when the dimension is dynamic."""
    calls(scaled, torch.ones(4), torch.ones(1), torch.ones(0), dynamic=True)


def shape_divisibility():
    calls(lambda x: x.reshape(-1, 4) * 2, torch.ones(8), torch.ones(16), torch.ones(4), dynamic=True)


def dtype_of_argument():
    calls(Model(), torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int32))


def device_of_argument():
    calls(scaled, torch.ones(4), torch.ones(4, device="meta"))


def layout_of_argument():
    calls(lambda x: x + x, torch.ones(4, 4), torch.ones(4, 4).to_sparse())


def inference_mode():
    run = compiled(scaled)
    run(torch.ones(4))
    with torch.inference_mode():
        run(torch.ones(4))


def inference_tensor():
    with torch.inference_mode():
        made_inside = torch.ones(4)
    calls(lambda x: x.clone(), torch.ones(4), made_inside)


def stride_of_argument():
    calls(scaled, torch.ones(4, 6), torch.ones(6, 4).t())


def requires_grad_of_argument():
    calls(scaled, torch.ones(4), torch.ones(4, requires_grad=True))


def grad_mode():
    run = compiled(scaled)
    run(torch.ones(4, requires_grad=True))
    with torch.no_grad():
        run(torch.ones(4, requires_grad=True))


def global_state_autocast():
    run = compiled(scaled)
    run(torch.ones(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(torch.ones(4))


def global_state_default_dtype():
    run = compiled(scaled)
    run(torch.ones(4))
    torch.set_default_dtype(torch.float64)
    try:
        run(torch.ones(4, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


def global_state_deterministic():
    run = compiled(scaled)
    run(torch.ones(4))
    torch.use_deterministic_algorithms(True)
    try:
        run(torch.ones(4))
    finally:
        torch.use_deterministic_algorithms(False)


def global_state_threads():
    run = compiled(scaled)
    before = torch.get_num_threads()
    run(torch.ones(4))
    torch.set_num_threads(before + 1)
    try:
        run(torch.ones(4))
    finally:
        torch.set_num_threads(before)


def global_state_default_device():
    def made(x):
        return x + torch.ones(4)

    run = compiled(made)
    run(torch.ones(4, device="cpu"))
    torch.set_default_device("cpu")
    try:
        run(torch.ones(4, device="cpu"))
    finally:
        torch.set_default_device(None)


def global_state_device():
    run = compiled(scaled)
    run(torch.ones(4))
    with torch.device("meta"):
        run(torch.ones(4, device="cpu"))


def python_int():
    calls(lambda x, n: x * n, (torch.ones(4), 3), (torch.ones(4), 5))


def python_int_default_dynamic():
    calls(lambda x, n: x * n, *((torch.ones(4), n) for n in (3, 5, 7, 1)), dynamic=None)


def python_int_range():
    """The dynamic policy keeps the integer symbolic and guards on what the branch has learned of it."""

    def branch(x, n):
        return x * n if n > 4 else x + n

    calls(branch, (torch.ones(4), 7), (torch.ones(4), 3), dynamic=True)


def python_float():
    calls(lambda x, n: x * n, (torch.ones(4), 0.5), (torch.ones(4), 0.25))


def python_list_item():
    calls(lambda x, sizes: x * sizes[1], (torch.ones(4), [2, 3]), (torch.ones(4), [2, 5]))


def python_bool():
    calls(lambda x, flag: x * 2 if flag else x, (torch.ones(4), True), (torch.ones(4), False))


def python_string():
    calls(lambda x, mode: x * len(mode), (torch.ones(4), "mean == # 2"), (torch.ones(4), "sum"))


def optional_bias(x, bias):
    return x * 2 if bias is None else x + bias


def none_before_tensor():
    calls(optional_bias, (torch.ones(4), None), (torch.ones(4), torch.ones(4)))


def none_after_tensor():
    calls(optional_bias, (torch.ones(4), torch.ones(4)), (torch.ones(4), None))


def python_dtype():
    calls(lambda x, to: x.to(to), (torch.ones(4), torch.float64), (torch.ones(4), torch.float16))


class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2
        self.options = {"mode": "fast"}

    def forward(self, x):
        return x * self.scale if self.training else x + len(self.options["mode"])


def module_attribute():
    model = Scaler()
    run = compiled(model)
    run(torch.ones(4))
    model.scale = 3
    run(torch.ones(4))


def module_training():
    model = Scaler()
    run = compiled(model)
    run(torch.ones(4))
    model.eval()
    run(torch.ones(4))


def module_attribute_item():
    model = Scaler().eval()
    run = compiled(model)
    run(torch.ones(4))
    model.options["mode"] = "exact"
    run(torch.ones(4))


def module_function():
    """A function held by a module is replaced by another."""

    class Activated(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.sin

        def forward(self, x):
            return self.act(x)

    model = Activated()
    run = compiled(model)
    run(torch.ones(4))
    model.act = torch.cos
    run(torch.ones(4))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


def module_counter():
    calls(Counter(), torch.ones(4), torch.ones(4), torch.ones(4))


def global_value():
    global FLAG

    def gated(x):
        return x * FLAG

    run = compiled(gated)
    FLAG = 1
    run(torch.ones(4))
    FLAG = 2
    run(torch.ones(4))


def global_item():
    def looked_up(x):
        return x * TABLE["scale"]

    run = compiled(looked_up)
    TABLE["scale"] = 2.0
    run(torch.ones(4))
    TABLE["scale"] = 3.0
    run(torch.ones(4))


def closure_cell():
    scale = 2

    def inner(x):
        return x * scale

    run = compiled(inner)
    run(torch.ones(4))
    scale = 3
    run(torch.ones(4))


def closure_of_argument():
    def made(scale):
        return lambda x: x * scale

    calls(lambda function, x: function(x), (made(2), torch.ones(4)), (made(3), torch.ones(4)))


def total(xs):
    return sum(x.sum() for x in xs)


def length_of_list():
    calls(total, ([torch.ones(4) for _ in range(2)],), ([torch.ones(4) for _ in range(3)],))


def length_of_empty_list():
    calls(lambda x, xs: x + len(xs), (torch.ones(4), []), (torch.ones(4), [1, 2]))


def keys_of_dict():
    calls(lambda d: sum(x.sum() for x in d.values()), ({"a": torch.ones(4)},), ({"b": torch.ones(4)},))


def length_of_dict():
    calls(lambda d: d["a"] * 2, ({"a": torch.ones(4)},), ({"a": torch.ones(4), "b": torch.ones(4)},))


def type_of_argument():
    calls(lambda x, n: x * n, (torch.ones(4), 3), (torch.ones(4), 3.0))


def type_of_container():
    calls(lambda xs: xs[0] + 1, ([torch.ones(4)],), ((torch.ones(4),),))


class Left:
    width = 2


class Right:
    width = 2


def wide(x, config):
    return x * config.width


def type_of_object():
    calls(wide, (torch.ones(4), Left()), (torch.ones(4), Right()))


def object_attribute():
    config = Left()
    config.width = 2
    run = compiled(wide)
    run(torch.ones(4), config)
    config.width = 3
    run(torch.ones(4), config)


class Tagged(torch.Tensor):
    pass


def type_of_tensor():
    calls(scaled, torch.ones(4), torch.ones(4).as_subclass(Tagged))


def identity_of_function():
    calls(lambda x, function: function(x), (torch.ones(4), torch.sin), (torch.ones(4), torch.cos))


def identity_of_alias():
    x = torch.ones(4)
    calls(lambda a, b: a + b, (x, x), (torch.ones(4), torch.ones(4)))


def identity_of_distinct_tensors():
    x = torch.ones(4)
    calls(lambda a, b: a + b, (torch.ones(4), torch.ones(4)), (x, x))


def attribute_appears():
    def tagged(x):
        return x + 1 if hasattr(x, "tag") else x * 2

    x = torch.ones(4)
    marked = torch.ones(4)
    marked.tag = True
    calls(tagged, x, marked)


def dynamic_marks():
    x = torch.ones(4)
    marked = torch.ones(4)
    torch._dynamo.mark_dynamic(marked, 0)
    calls(scaled, x, marked, dynamic=None)


# Several entries, limits, policies.


def two_entries_rejected():
    calls(scaled, torch.ones(32), torch.ones(48), torch.ones(64))


def limit(number, accumulated=False):
    """The recompile limit, under the name that the release has for it."""
    kind = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    return torch._dynamo.config.patch({f"accumulated_{kind}" if accumulated else kind: number})


def limit_hit():
    """Limit 3, six lengths: three variants, one refused attempt, then silence."""
    with limit(3):
        calls(Model(), *(torch.zeros(1, n, dtype=torch.int64) for n in (4, 5, 6, 7, 8, 4, 9)))


def limit_hit_on_value():
    with limit(2):
        calls(Counter(), *(torch.ones(4) for _ in range(4)))


def limit_hit_accumulated():
    with limit(2, accumulated=True):
        calls(scaled, *(torch.ones(n) for n in (4, 5, 6, 7)))


def default_dynamic():
    """The default policy makes the dimension dynamic after one recompile."""
    calls(Model(), *(torch.zeros(1, n, dtype=torch.int64) for n in (60, 63, 69, 16)), dynamic=None)


def recompile_of_resumed_frame():
    """The part after the break is a frame of its own, and recompiles by itself."""

    def broken(x, n):
        x = x + 1
        torch._dynamo.graph_break()
        return x * n

    calls(broken, (torch.ones(4), 2), (torch.ones(4), 3))


CASES = [
    clean,
    break_on_item_branch,
    break_on_tensor_branch,
    break_on_print,
    break_on_print_call,
    break_on_disabled_helper,
    break_before_blocks,
    break_in_inlined_helper,
    break_on_branch_in_helper,
    break_in_loop,
    break_in_loop_on_item,
    break_repeated,
    break_in_with_block,
    break_in_try_block,
    break_skips_frame,
    shape_of_argument,
    shape_rank,
    shape_of_parameter,
    shape_of_list_item,
    shape_duck_equality,
    shape_range,
    shape_zero_one,
    shape_divisibility,
    dtype_of_argument,
    device_of_argument,
    layout_of_argument,
    inference_mode,
    inference_tensor,
    stride_of_argument,
    requires_grad_of_argument,
    grad_mode,
    global_state_autocast,
    global_state_default_dtype,
    global_state_deterministic,
    global_state_threads,
    global_state_default_device,
    global_state_device,
    python_int,
    python_int_default_dynamic,
    python_int_range,
    python_float,
    python_list_item,
    python_bool,
    python_string,
    none_before_tensor,
    none_after_tensor,
    python_dtype,
    module_attribute,
    module_training,
    module_attribute_item,
    module_function,
    module_counter,
    global_value,
    global_item,
    closure_cell,
    closure_of_argument,
    length_of_list,
    length_of_empty_list,
    keys_of_dict,
    length_of_dict,
    type_of_argument,
    type_of_container,
    type_of_object,
    object_attribute,
    type_of_tensor,
    identity_of_function,
    identity_of_alias,
    identity_of_distinct_tensors,
    attribute_appears,
    dynamic_marks,
    two_entries_rejected,
    limit_hit,
    limit_hit_on_value,
    limit_hit_accumulated,
    default_dynamic,
    recompile_of_resumed_frame,
]


def redirect_torch_handlers(stream):
    """Point the stream handlers that torch installed at `stream`; returns how many there were."""
    loggers = [logging.getLogger(name) for name in list(logging.Logger.manager.loggerDict)]
    found = {handler for logger in loggers for handler in logger.handlers}
    handlers = [handler for handler in found if type(handler) is logging.StreamHandler]
    for handler in handlers:
        handler.setStream(stream)
    return len(handlers)


def without_folders(text):
    """Replace this machine's folders by names, the deepest first so that no folder hides inside another."""
    folders = {
        str(Path(torch.__file__).parent): "$TORCH",
        str(PROJECT): "$PROJECT",
        tempfile.gettempdir(): "$TMP",
        os.path.expanduser("~"): "$HOME",
    }
    for folder in sorted(folders, key=len, reverse=True):
        text = text.replace(folder, folders[folder])
    # A comment behind a guard names the file without the start that it shares with torch's own folder, and
    # one character more: '# rojects/lab/x.py:7 in f' stands for /projects/lab/x.py.
    return text.replace(f"# {shorten_filename(str(PROJECT))}{os.sep}", f"# $PROJECT{os.sep}")


def record(case):
    """Run one case as if the process were new; returns the text that torch logged."""
    stream = io.StringIO()
    if not redirect_torch_handlers(stream):
        raise SystemExit("torch installed no stream handler: nothing can be recorded")
    torch._dynamo.reset()
    torch.manual_seed(0)
    case()
    return without_folders(stream.getvalue())


def main():
    warnings.simplefilter("ignore")
    torch._logging.set_logs(graph_breaks=True, recompiles=True)
    folder = HERE / torch.__version__.split("+")[0]
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.log"):
        old.unlink()
    for case in CASES:
        text = record(case)
        (folder / f"{case.__name__}.log").write_text(text, encoding="utf-8")
        print(f"{case.__name__}: {len(text.splitlines())} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
