"""Gradient codecs: what a slice travels as. Pure: arrays in, bytes out, the caller keeps state.

Compression is beside P3's point (the paper's section 5.6 holds itself against it), and here to be
compared, and combined, with it.
"""

from collections.abc import Mapping

from p3.codecs.codec import Codec
from p3.codecs.onebit import OneBit
from p3.codecs.qsgd import Qsgd
from p3.codecs.rounding import BFloat16, Float16
from p3.codecs.topk import TopK

__all__ = ["CODECS", "BFloat16", "Codec", "Float16", "OneBit", "Qsgd", "TopK"]

CODECS: Mapping[str, Codec] = {
    codec.name: codec for codec in (Float16(), BFloat16(), Qsgd(), OneBit(), TopK())
}
"""By the name that `distribute(codec=)` takes; "none" is none of them."""
