"""`python3 -m kernels.attention.cuda.explain`: see `explaining`."""

from kernels.attention.cuda.explaining import main

if __name__ == "__main__":
    raise SystemExit(main())
