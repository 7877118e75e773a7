"""The shell commands. Each imports what it needs when it runs, so help is instant."""

import json
import sys

import click

from tfgc import _cli_options as shared
from tfgc._errors import OptionError, TfgcError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tfgc", message="tfgc %(version)s")
def cli():
    """Train Keras models in less memory, and see what it costs.

    A network is named as one of tfgc's zoo ("unet", "big_cnn(3, 9)"), as one of
    keras.applications ("resnet50"), as module:function that builds a model, or as a
    saved .keras file.
    """


@cli.command()
@shared.model_options
@shared.plan_options
@shared.cost_options
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the plan into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def plan(name, batch_size, image_size, inputs, budget, strategy, options, measure, optimizer, output, as_json):
    """Choose what to keep and what to recompute when NAME trains.

    With --budget the fastest plan that fits, else the plan of least peak. Memory and work
    are predicted; nothing is trained.
    """
    from tfgc import _plan_report

    if output:
        shared.check_writable(output)
    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        from tfgc import _planner

        common = {"input_shapes": sizes, "measure": measure, "optimizer": optimizer}
        made = _make(model, batch_size, budget, strategy, options, **common)
        step, plain = (_planner.estimate(model, batch_size, which, **common) for which in (made, None))
    facts = _plan_report.facts(name, made, step, plain)
    if output:
        with open(output, "w") as file:
            file.write(made.to_json())
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    for line in _plan_report.summary(facts):
        click.echo(line)
    if output:
        click.echo(f"  written to  {output}")


@cli.command()
@shared.model_options
@shared.plan_options
@shared.cost_options
@click.option("--plan", "plan_path", type=click.Path(), help="A plan file, in place of options to plan by.")
def explain(name, batch_size, image_size, inputs, budget, strategy, options, measure, optimizer, plan_path):
    """Say segment by segment what a plan stores and runs again, why, and what that costs."""
    read = _read_plan(plan_path, budget, strategy, options)
    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        common = {"input_shapes": sizes, "measure": measure}
        if read is None:
            made = _make(model, batch_size, budget, strategy, options, optimizer=optimizer, **common)
        else:
            made = _judged(model, batch_size, read, **common)
    click.echo(made.explain())


@cli.command()
@shared.model_options
@click.option("--budget", help="Mark the plan of least overhead in this budget.")
@click.option("--budgets", help="Budgets, separated by commas: tell what each of them buys.")
@click.option("--points", type=int, default=12, show_default=True, help="Plans of the front to tell of.")
@click.option("--plan", "plan_paths", multiple=True, type=click.Path(), help="Tell of this plan file too; repeatable.")
@shared.cost_options
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False), help="Draw overhead over peak into this PNG.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the front into this file.")
def sweep(
    name, batch_size, image_size, inputs, budget, budgets, points, plan_paths, measure, optimizer, plot_path, json_path
):  # fmt: skip
    """Print the least overhead for each peak of training NAME.

    From the least peak that can be reached to the plain step. Predicted; nothing is trained.
    """
    import dataclasses

    from tfgc import _plan, _plan_report, _report

    plans = [(path, _plan.read(path)) for path in plan_paths]
    listed = [word.strip() for word in (budgets or "").split(",") if word.strip()]
    if budgets is not None and not listed:
        raise OptionError(f"--budgets {budgets!r}: name budgets, such as 1GB,2GB,60%")
    for path in filter(None, (json_path, plot_path)):
        shared.check_writable(path)
    if plot_path:
        _report.require_matplotlib()
    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        from tfgc import _sweep

        front = _sweep.sweep(
            model,
            name,
            batch_size,
            points=points,
            budgets=list(dict.fromkeys([*listed, *([budget] if budget else [])])),
            plans=plans,
            input_shapes=sizes,
            measure=measure,
            optimizer=optimizer,
        )
    _report.print_table(_plan_report.table(front))
    if front.choices:
        _report.print_table(_plan_report.budgets(front))
    if json_path:
        with open(json_path, "w") as file:
            json.dump(dataclasses.asdict(front), file, indent=1)
    if plot_path:
        _plan_report.plot(front, plot_path)


@cli.command()
@shared.model_options
@click.option(
    "--strategy",
    help="Strategies, separated by commas; sqrt:8 stands for sqrt with 8 segments.  "
    "[default: none with a plan, budget with a budget, else sqrt]",
)
@click.option("--plan", "plan_paths", multiple=True, type=click.Path(), help="Measure this plan file; repeatable.")
@click.option("--budget", help="Bytes of the whole step, for strategies that honour a budget.")
@click.option("--steps", type=int, default=5, show_default=True, help="Counted steps of each case.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the measurements into this file.")
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False), help="Draw memory over time into this PNG.")
def compare(name, batch_size, image_size, inputs, strategy, plan_paths, budget, steps, json_path, plot_path):
    """Measure memory and time of training NAME against a plain GradientTape.

    Each case runs in a process of its own, one after the other: plain-eager, plain-graph, and
    each strategy and plan in eager calls and in tf.function. A case that runs out of memory is a row "oom".
    """
    import rich.progress

    from tfgc import _measure, _report, _results

    wanted = None if strategy is None else [item.strip() for item in strategy.split(",") if item.strip()]
    chosen = {"plans": plan_paths, "budget": budget, "input_shapes": shared.shapes(inputs) or None}
    cases = _measure.plan_cases(name, batch_size, wanted, image_size, steps, **chosen)
    for path in filter(None, (json_path, plot_path)):
        shared.check_writable(path)
    if plot_path:
        _report.require_matplotlib()
    columns = ("{task.description}", rich.progress.BarColumn(), "{task.completed}/{task.total} cases")
    with rich.progress.Progress(
        *columns, rich.progress.TimeElapsedColumn(), console=shared.progress_console()
    ) as progress:
        task = progress.add_task(name, total=len(cases))
        results = _measure.compare(
            name,
            batch_size,
            wanted,
            image_size=image_size,
            steps=steps,
            on_start=lambda case: progress.update(task, description=f"{name}: {case}"),
            on_result=lambda _: progress.advance(task),
            **chosen,
        )
    _report.print_table(_report.comparison(results))
    _report.print_table(_report.losses(results))
    if json_path:
        command = " ".join(["tfgc", *sys.argv[1:]])
        study = _results.Study(name, batch_size, tuple(results))
        with open(json_path, "w") as file:
            file.write(_results.to_json(_results.Results((study,), command)))
    if plot_path:
        _report.plot(results, plot_path)
    failed = [r for r in results if r.status == "failed"]
    if failed:
        raise TfgcError(f"{len(failed)} of {len(results)} cases failed; {failed[0].name}: {failed[0].detail}")


@cli.command()
@shared.model_options
@shared.plan_options
@click.option("--plan", "plan_path", type=click.Path(), help="A plan file, in place of options to plan by.")
@click.option("--layers", help="Layers to recompute, separated by commas, in place of a plan.")
@click.option(
    "--mode",
    "modes",
    default="eager,compiled,graph",
    show_default=True,
    help="Of eager, compiled, graph and xla, with commas.",
)
@click.option("--steps", type=int, default=3, show_default=True, help="Steps in a row.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verify(
    name, batch_size, image_size, inputs, budget, strategy, options, plan_path, layers, modes, steps, as_json
):  # fmt: skip
    """Prove that training NAME by a plan gives what plain training gives.

    Compares the loss, every gradient, state and seed of plain and planned steps on seeded noise, with the squared
    error as the loss. Exit code 1 if anything differs.
    """
    read = _read_plan(plan_path, budget, strategy, options)
    if layers is not None and (read is not None or budget or strategy or options):
        raise OptionError("give --layers, or a plan or options to make one, not both")
    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        from tfgc import _synthetic, _verify

        if read is None and layers is None:
            read = _make(model, batch_size, budget, strategy, options, input_shapes=sizes)
        x, y = _synthetic.batch(model, batch_size, sizes)
        verdict = _verify.verify(
            model,
            read,
            (x, y if len(y) > 1 else y[0]),
            layers=None if layers is None else [word.strip() for word in layers.split(",")],
            loss="mse",
            modes=[word.strip() for word in modes.split(",")],
            steps=steps,
        )
    click.echo(json.dumps(verdict.to_dict(), indent=1) if as_json else verdict)
    if not verdict:
        raise TfgcError(f"{name} trains differently by this plan: {verdict.worst}")


def _read_plan(path, budget, strategy, options):
    """The plan in a file, None if none is named; options to make one are then a mistake."""
    from tfgc import _plan

    if path is None:
        return None
    for flag, given in (("--budget", budget), ("--strategy", strategy), ("--option", options)):
        if given:
            raise OptionError(f"give --plan, or {flag} to make one, not both")
    return _plan.read(path)


def _make(model, batch_size, budget, strategy, options, **common):
    """Plan as the options say."""
    from tfgc import _planner, strategies

    chosen = shared.settings(options)
    if strategy is not None:
        strategy, more = strategies.named(strategy)
        chosen = {**more, **chosen}
    return _planner.plan(model, batch_size, strategy=strategy, budget=budget, **common, **chosen)


def _judged(model, batch_size, plan, *, input_shapes, measure):
    """A saved plan with its figures for this batch."""
    import dataclasses

    from tfgc import _judge, _sizes, _trace

    plan.check(_trace.read(model))
    whole_step = plan.outlook is not None and plan.outlook.whole_step
    graph = _sizes.graph_of(model, batch_size, input_shapes, None, measure=measure, whole_step=whole_step)
    return _judge.judged(graph, dataclasses.replace(plan, batch_size=graph.batch_size))
