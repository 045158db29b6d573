"""A script whose last rank fails under torch.distributed.elastic's @record, which leaves the exception for the launcher."""
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == dist.get_world_size() - 1:
        raise ValueError(f"batch 17 of rank {dist.get_rank()} holds no sample")
    dist.barrier()  # Never passed.


if __name__ == "__main__":
    main()
