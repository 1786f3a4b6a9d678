"""An MXNet rank that ends in the given way while sums are under way. Needs .venv-mxnet."""

from __future__ import annotations

import sys

from mxnet import gluon
from support.mxnet_rank import OPTIMIZERS, network, train


def main() -> None:
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore="dist_p3")
    train(net, trainer, range(2))
    if sys.argv[1] == "exit":
        sys.exit(3)
    if sys.argv[1] == "raise":
        raise ValueError("no more data")


if __name__ == "__main__":
    main()
