"""PyTorch's state_dict() of an optimizer, which numbers the parameters, and the forms that name them."""
import torch

from ddp_run import optimizers, shards, values

# State that has its parameter's shape.
_SHAPED = {"momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "grad_avg", "exp_inf", "ax"}
# Options that come and go with releases of PyTorch, and with how an optimizer was made.
_LOOSE = {"params", "param_names", "foreach", "fused", "maximize", "capturable", "differentiable", "decoupled_weight_decay", "initial_lr"}


def prefix_of(names, tensors):
    """What the names begin with because several modules were registered, if all are of one; empty if not.

    tensors: by module, the names of its tensors. Of a module without any, a checkpoint does not tell.
    """
    for module, own in tensors.items():
        prefix = f"{module}."
        if names and all(name.startswith(prefix) and name.removeprefix(prefix) in own for name in names):
            return prefix
    return ""


def state_dict_of(description, tensors, keys):
    """What state_dict() would have given.

    description: as worker/checkpoint/FORMAT.md has it. tensors: by parameter, then by the name of the state. keys: by parameter, what
    stands for it, in the order of parameters.
    """
    counts_in_tensors = optimizers.counts_in_tensors(description["type"])

    def decoded(key, value):
        if key == "step" and counts_in_tensors and isinstance(value, int):
            return torch.tensor(float(value), dtype=torch.float32)
        return values.plain(values.decode(value))

    state = {}
    for name, key in keys.items():
        if name in description["state"]:
            scalars = {each: decoded(each, value) for each, value in description["state"][name].items()}
            state[key] = {**scalars, **tensors.get(name, {})}
    groups = [{**{key: _option(key, each) for key, each in group["options"].items()}, "params": [keys[name] for name in group["params"]]}
              for group in description["groups"]]
    return {"state": state, "param_groups": groups}


def _option(key, saved):
    value = values.plain(values.decode(saved))
    # A checkpoint has lists where PyTorch's optimizers have tuples.
    return tuple(value) if isinstance(value, list) and key != "param_names" else value


def fitted(saved, optimizer, names):
    """The saved dict as optimizer.load_state_dict() takes it: by number, with every option that the optimizer has.

    names: of the optimizer's parameters, by group. Raises ValueError, which says what differs, for the state of another optimizer.
    """
    if not isinstance(saved, dict) or not isinstance(saved.get("param_groups"), list):
        raise ValueError("it is no state_dict() of an optimizer: it has no list \"param_groups\"")
    groups, own_groups = saved["param_groups"], optimizer.param_groups
    if len(groups) != len(own_groups):
        raise ValueError(f"there are {len(groups)} saved parameter groups, the program has {len(own_groups)}")
    numbers, parameters, filled = {}, {}, []
    for number, (group, own, own_names) in enumerate(zip(groups, own_groups, names)):
        named = any(isinstance(each, str) for each in group["params"])
        if len(group["params"]) != len(own_names) or named and set(group["params"]) != set(own_names):
            raise ValueError(f"group {number} has other parameters than the saved one: {_brief(own_names)} here, "
                             f"{_brief(group['params'])} saved")
        _check_options(number, group, own)
        for place, (key, own_name) in enumerate(zip(own_names if named else group["params"], own_names)):
            numbers[key] = len(numbers)
            parameters[numbers[key]] = own_name, own["params"][place]
        options = {key: tuple(each) if isinstance(own.get(key), tuple) and isinstance(each, list) else each for key, each in group.items()}
        first = len(numbers) - len(own_names)
        filled.append({**own, **options, "params": list(range(first, len(numbers)))})
    state = {}
    for key, each in saved.get("state", {}).items():
        key = key if key in numbers else int(key) if isinstance(key, str) and key.isdigit() else key
        if key not in numbers:
            raise ValueError(f"there is saved state of \"{key}\", which is no parameter here")
        name, parameter = parameters[numbers[key]]
        _check_shapes(name, parameter, each)
        state[numbers[key]] = {kind: shards.part_of(one, parameter, name) if isinstance(one, torch.Tensor) else one
                               for kind, one in each.items()}
    return {"state": state, "param_groups": filled}


def _check_options(number, group, own):
    missing, unknown = ({*one} - {*other} - _LOOSE for one, other in ((own, group), (group, own)))
    if missing and unknown:
        raise ValueError(f"group {number} is of another type of optimizer: only the saved one has {', '.join(sorted(unknown))}, only the "
                         f"program's has {', '.join(sorted(missing))}")


def _check_shapes(name, parameter, state):
    for key, each in state.items():
        if key in _SHAPED and isinstance(each, torch.Tensor) and each.shape != parameter.shape:
            raise ValueError(f"{key} of {name} is {list(each.shape)} in the file, and the parameter is {list(parameter.shape)} here")


def _brief(keys):
    return ", ".join(map(str, keys[:4])) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "") or "none"
