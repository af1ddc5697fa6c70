"""`python -m kernels.attention.cuda.compile_gradients [FOLDER]`: see `native`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.attention.cuda.calls import native
from kernels.attention.cuda.errors import BuildFailed
from kernels.attention.cuda.run.engine import default_cache


def main(arguments: Sequence[str]) -> int:
    """Compiles it into the given folder, or into the folder where kernels are kept."""
    folder = Path(arguments[0]) if arguments else default_cache()
    try:
        sys.stdout.write(f"{native.build_native(folder)}\n")
    except BuildFailed as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
