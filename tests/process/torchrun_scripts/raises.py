"""Raises under @record."""
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise KeyError("no such weight")


main()
