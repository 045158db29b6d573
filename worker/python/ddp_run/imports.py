"""Puts what other programs have saved into the registered state."""
import copy

import torch

from ddp_run import foreign, modules, optimizer_dicts, optimizers, shards, values

# What wrappers of modules put in front of all names.
_WRAPPERS = {"module.": "DistributedDataParallel", "_orig_mod.": "torch.compile"}


def load(registry, path, strict, module):
    """ElasticState.load_from() for what is registered."""
    content, notes = foreign.read(path)
    saved = _by_name(content, registry, path, module)
    fits = [name for name in (*registry.items, *registry.values) if name in saved]
    if not fits:
        raise ValueError(f"{path} has {_listed(saved)}, and the state has {_listed([*registry.items, *registry.values])}: nothing has the "
                         "same name; name the state in ElasticState(...) as the file does")
    notes += [f"the file has no \"{name}\", which stays as it is" for name in (*registry.items, *registry.values) if name not in saved]
    notes += [f"the file has \"{name}\", which is not registered and left out" for name in saved if name not in fits]
    fresh = {name: _value(name, registry.values[name], saved[name]) for name in fits if name in registry.values}
    before = []  # Of what has been changed.
    try:
        # Schedulers read their optimizers.
        for name in sorted((name for name in fits if name in registry.items), key=lambda name: _turn(registry.items[name])):
            item = registry.items[name]
            before.append((item, copy.deepcopy(item.state_dict())))
            try:
                notes += _fit(registry, name, item, saved[name], strict)
            except Exception as error:
                said = error if isinstance(error, (ValueError, RuntimeError)) else repr(error)
                raise ValueError(f"\"{name}\" of {path} does not fit: {said}") from error
    except BaseException:
        for item, state in reversed(before):
            item.load_state_dict(state)
        raise
    for name, value in fresh.items():
        registry.put(name, value)
    return {"loaded": fits, "notes": notes}


def _by_name(content, registry, path, chosen):
    """What there is for each name. Tensors alone are the only module's."""
    own = list(registry.modules())
    if chosen is not None and chosen not in own:
        raise ValueError(f"module=\"{chosen}\" is not registered; there are {_listed(own)}")
    if not all(isinstance(each, torch.Tensor) for each in content.values()) or any(name in registry.items for name in content):
        if chosen is not None:
            raise ValueError(f"module=\"{chosen}\" is for a file with one module's tensors alone, and {path} has {_listed(content)}")
        return content
    if chosen is None and len(own) != 1:
        raise ValueError(f"{path} has the tensors of one module, and the state has {len(own)} modules ({', '.join(own)}): module=... says "
                         "whose they are")
    return {chosen or own[0]: content}


def _turn(item):
    return 0 if isinstance(item, torch.nn.Module) else 1 if isinstance(item, torch.optim.Optimizer) else 2


def _fit(registry, name, item, saved, strict):
    """Loads it. Returns notes."""
    if isinstance(item, torch.nn.Module):
        return _fit_module(name, item, saved, strict)
    if isinstance(item, torch.optim.Optimizer):
        names = optimizers.OptimizerState(name, item, registry.parameter_names).named_groups()
        tensors = {each: dict(sum(modules.named_tensors(module), [])) for each, module in registry.modules().items()}
        prefix = optimizer_dicts.prefix_of([each for group in names for each in group], tensors)
        item.load_state_dict(optimizer_dicts.fitted(saved, item, [[each.removeprefix(prefix) for each in group] for group in names]))
        return []
    item.load_state_dict(saved)
    return []


def _fit_module(name, module, saved, strict):
    if not isinstance(saved, dict):
        raise ValueError(f"it is a {type(saved).__name__}, not a dict of tensors")
    notes, own = [], dict(sum(modules.named_tensors(module), []))
    for prefix in 2 * list(_WRAPPERS):  # One wrapper may hold the other, either way.
        if saved and all(key.startswith(prefix) for key in saved) and not any(key.startswith(prefix) for key in own):
            saved = {key.removeprefix(prefix): each for key, each in saved.items()}
            notes.append(f"the names of \"{name}\" began with \"{prefix}\", as those of {_WRAPPERS[prefix]} do")
    # A tensor under several names need not be there under each.
    by_tensor = {id(own[key]): each for key, each in saved.items() if key in own}
    saved = {**saved, **{key: by_tensor[id(each)] for key, each in own.items() if key not in saved and id(each) in by_tensor}}
    changed = [(saved[key].dtype, each.dtype) for key, each in own.items()
               if isinstance(saved.get(key), torch.Tensor) and saved[key].dtype != each.dtype]
    for theirs, ours in sorted(set(changed), key=str):
        notes.append(f"{changed.count((theirs, ours))} tensors of \"{name}\" are {theirs} in the file, and are now {ours}")
    saved = {key: shards.part_of(each, own[key], key) if key in own and isinstance(each, torch.Tensor) else each
             for key, each in saved.items()}
    missing, unexpected = module.load_state_dict(saved, strict=strict)
    notes += [f"the file has no \"{key}\" of \"{name}\", which stays as it is" for key in missing]
    return [*notes, *(f"the file has \"{key}\", which \"{name}\" lacks" for key in unexpected)]


def _value(name, own, saved):
    """The saved value, encoded."""
    if isinstance(own, (int, float)) and isinstance(saved, torch.Tensor) and saved.numel() == 1:
        saved = saved.item()
    if type(own) is int and isinstance(saved, float) and saved.is_integer():
        saved = int(saved)
    if isinstance(own, tuple) and isinstance(saved, list):
        saved = tuple(saved)
    if own is not None and not isinstance(saved, (int, float) if isinstance(own, float) else type(own)):
        raise ValueError(f"\"{name}\" is a {type(saved).__name__} in the file and a {type(own).__name__} here")
    return values.encode(saved, name)


def _listed(names):
    return ", ".join(f"\"{name}\"" for name in names) or "nothing"
