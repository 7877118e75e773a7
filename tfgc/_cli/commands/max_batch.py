"""`tfgc max-batch`: the largest batch whose step fits in a budget."""

import click

from tfgc._cli import choices, options
from tfgc._errors import OptionError


@click.command("max-batch", cls=options.Command)
@options.network_without_batch
@click.option("--budget", required=True, help="Memory for the whole step: 8GB, or auto (free memory).")
@click.option("--strategy", help="Planning strategy.  [default: the plan with the lowest peak for each batch]")
@options.strategy_options
@options.optimizer
@options.mode
@click.option(
    "--confirm/--no-confirm", default=True, help="Measure batches around the predicted one.  [default: confirm]"
)
@click.option("--steps", type=options.COUNT, default=3, show_default=True, help="Measured steps per run.")
@click.option("-o", "--output", type=options.OUTPUT, help="Write the plan for that batch to this file.")
@options.json_option
def command(
    network: choices.NetworkChoice,
    budget: str,
    strategy: str | None,
    strategy_options: choices.Settings,
    optimizer: str | None,
    mode: str,
    confirm: bool,
    steps: int,
    output: str | None,
    json_path: str | None,
) -> None:
    """Find the largest batch of NAME whose step fits in a budget.

    The search runs with and without recomputation. The batch is predicted first, then measured in at most eight child
    processes for each, until a batch fits and one that is at most 2 % or one sample larger does not. Weights,
    optimizer state and the batch itself are counted.
    """
    from tfgc._measure import max_batch
    from tfgc._records import batch_limit

    if output and strategy == "keep_all":
        raise OptionError(f"-o {output!r}: keep_all recomputes nothing and has no plan to write")
    chosen, settings = choices.chosen_strategy(strategy, strategy_options, "budget")
    result = max_batch.max_batch(
        network.name,
        budget,
        strategy=chosen,
        optimizer=optimizer,
        mode=mode,
        confirm=confirm,
        steps=steps,
        **network.sizes(),
        **settings,
    )
    if output and result.plan is not None:
        result.plan.save(output)
    if not options.emit_json(batch_limit.facts(result), json_path):
        options.echo(result)
