"""Writes dequantise.txt: digests of what the Python package `gguf` makes of pseudo-random blocks.

    pip install gguf numpy && python3 tests/golden/dequantise.py > tests/golden/dequantise.txt

The package dequantises with numpy, independently of this crate. It knows no Q2_0.
"""

import hashlib

import gguf
import numpy

BLOCKS = 4096
# Format, and the bytes whose bit 6 (the highest of an f16's exponent) is cleared, so that the scales are finite.
FORMATS = [
    ("IQ1_M", [55]),
    ("IQ2_XXS", [1]),
    ("IQ2_XS", [1]),
    ("IQ2_S", [1]),
    ("IQ3_XXS", [1]),
    ("IQ3_S", [1]),
    ("IQ4_XS", [1]),
    ("IQ4_NL", [1]),
    ("Q4_K", [1, 3]),
    ("Q5_K", [1, 3]),
    ("Q6_K", [209]),
    ("Q5_1", [1, 3]),
    ("Q8_0", [1]),
]


def splitmix64(seed, n):
    state = (seed + numpy.arange(1, n + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)).astype(numpy.uint64)
    z = (state ^ (state >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


for name, finite in FORMATS:
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    words = splitmix64(numpy.uint64(7), BLOCKS * size // 8)
    blocks = words.astype("<u8").view(numpy.uint8).reshape(BLOCKS, size).copy()
    blocks[:, finite] &= 0xBF
    values = gguf.quants.dequantize(blocks, kind).astype("<f4")
    print(name, hashlib.sha256(values.tobytes()).hexdigest())
