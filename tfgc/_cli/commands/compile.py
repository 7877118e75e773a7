"""`tfgc compile`: what a training step needs on a GPU that is not there."""

import os

import click

from tfgc import _progress
from tfgc._cli import choices, options
from tfgc._errors import OptionError


@click.command("compile", cls=options.Command)
@options.network_options
@options.plan_or_options
@click.option("--target", default="h100", show_default=True, help="GPU: h100, a100, a100_40gb, l4, t4 or v100.")
@options.optimizer
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=1800,
    show_default=True,
    help="Seconds to wait for the compiler.",
)
@click.option("--xla-dump", metavar="DIRECTORY", help="Keep XLA's own texts of each step in folders of this directory.")
@options.json_option
def command(
    network: choices.NetworkChoice,
    planning: choices.PlanChoice,
    target: str,
    optimizer: str | None,
    timeout: float,
    xla_dump: str | None,
    json_path: str | None,
) -> None:
    """Show what a training step needs on a GPU, without one.

    The plain step and the step by a plan are compiled by XLA's GPU compiler, which `pip install "tfgc[compile]"`
    installs. Nothing is run. Each takes 10 seconds to several minutes.
    """
    from tfgc._compiled import compiler, targets

    targets.find(target)
    if xla_dump and os.path.isfile(xla_dump):
        raise OptionError(f"--xla-dump {xla_dump!r} is a file: name a directory")
    compiler.check_installed()
    plan = planning.read()
    with choices.warnings_in_a_line():
        model, given = network.open()
        from tfgc._compiled import memory

        plan = plan or planning.make(model, network.batch_size, optimizer=optimizer, mode="xla", **given)
        found = {}
        with _progress.bar(network.name, 2, "steps") as steps:
            for name, chosen in (("plain", None), (plan.strategy, plan)):
                steps.start(f"{network.name}: {name}")
                found[name] = memory.compiled_memory(
                    model,
                    network.batch_size,
                    chosen,
                    target=target,
                    optimizer=optimizer,
                    timeout=timeout,
                    dump=xla_dump and os.path.join(xla_dump, name),
                    **given,
                )
                steps.done()
    if options.emit_json({name: one.to_dict() for name, one in found.items()}, json_path):
        return
    for name, one in found.items():
        options.echo(f"{network.name}, batch {network.batch_size}, {name}: {one}")
