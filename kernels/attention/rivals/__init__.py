"""Attention of others, where it is installed: FlashAttention 3 and 4, FlexAttention, cuDNN by NVIDIA's own interface,
and FlashInfer. Each module adapts one interface; `package.py` says which package takes which case, and why not."""
