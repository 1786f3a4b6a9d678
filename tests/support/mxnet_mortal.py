"""An MXNet rank that trains until it hears of an error, which it prints. Needs .venv-mxnet."""

from __future__ import annotations

import mxnet as mx
from mxnet import gluon
from support.mxnet_rank import OPTIMIZERS, network, train

from p3.engine import P3Error


def main() -> None:
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore="dist_p3")
    try:
        while True:
            train(net, trainer, range(1))
            mx.nd.waitall()
            print("trained", flush=True)
    except (P3Error, mx.MXNetError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
