"""python3 -m ddp_run export SOURCE TARGET: export_checkpoint() as a command."""
import argparse
import sys

from ddp_run import export_checkpoint

parser = argparse.ArgumentParser(prog="python3 -m ddp_run")
export = parser.add_subparsers(dest="command", required=True).add_parser(
    "export", help="writes a checkpoint for programs without ddp_run",
    description="Writes the newest valid checkpoint at SOURCE to TARGET: *.pt, *.pth, *.bin for torch.load, *.safetensors for Hugging "
                "Face, any other name for torch.distributed.checkpoint. `ddp-checkpoint export` writes a module's tensors without PyTorch.")
export.add_argument("source", metavar="SOURCE", help="a folder of checkpoints, or one checkpoint")
export.add_argument("target", metavar="TARGET")
export.add_argument("--format", choices=["torch", "safetensors", "dcp"], help="whatever TARGET's name says")
export.add_argument("--module", metavar="NAME", help="for safetensors: which, if there are several")
arguments = parser.parse_args()
try:
    report = export_checkpoint(arguments.source, arguments.target, format=arguments.format, module=arguments.module)
except (ValueError, OSError) as error:
    sys.exit(f"ddp_run export: {error}")
for line in [*report["skipped"], *report["notes"]]:
    print(f"note: {line}", file=sys.stderr)
print(f"{arguments.target}: step {report['step']} of {report['path']}")
