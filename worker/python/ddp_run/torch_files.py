"""Files of torch.save, read without running code of them."""
import torch


def read(file, name):
    """What the open file holds, on the CPU. Raises ValueError, with the name, for damage and for what needs pickle."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # Damage has many types.
        asked = _asked_for(file)
        if asked:
            raise ValueError(f"{name} holds {', '.join(asked)}, which only pickle can make; pickle may run any code, so it is refused. If "
                             "you trust it, read it with torch.load(weights_only=False), and save its tensors, numbers and str again") from None
        raise ValueError(f"{name} is damaged, or not of torch.save: {(str(error).strip() or repr(error)).splitlines()[0]}") from None


def _asked_for(file):
    """What torch.load() would have to trust. Nothing of a file that is damaged."""
    try:
        file.seek(0)
        return torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # It is asked about a file that could not be read.
        return []
