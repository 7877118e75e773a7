"""The shell commands. Each imports what it needs when it runs, so help is instant."""

import os
import sys

import click

from tfgc._errors import TfgcError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tfgc", message="tfgc %(version)s")
def cli():
    """Train Keras models in less memory, and see what it costs.

    A network is named as one of tfgc's zoo ("sample_cnn", "big_cnn(3, 9)"), as one of
    keras.applications ("resnet50"), as module:function that builds a model, or as a
    saved .keras file.
    """


@cli.command()
@click.argument("name")
@click.option("--batch-size", type=int, required=True, help="Samples in a batch.")
@click.option(
    "--strategy", default="sqrt", show_default=True,
    help="Strategies, separated by commas; sqrt:8 stands for sqrt with 8 segments.",
)  # fmt: skip
@click.option("--image-size", type=int, help="Height and width of the images, for networks that take it.")
@click.option("--steps", type=int, default=5, show_default=True, help="Counted steps of each case.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the measurements into this file.")
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False), help="Draw memory over time into this PNG.")
def compare(name, batch_size, strategy, image_size, steps, json_path, plot_path):
    """Measure memory and time of training NAME against a plain GradientTape.

    Each case runs in a process of its own, one after the other: plain-eager, plain-graph, and
    each strategy in eager calls and in tf.function. A case that runs out of memory is a row "oom".
    """
    import rich.progress

    from tfgc import _measure, _report, _results

    wanted = [item.strip() for item in strategy.split(",") if item.strip()]
    cases = _measure.plan_cases(name, batch_size, wanted, image_size, steps)
    for path in filter(None, (json_path, plot_path)):
        _check_writable(path)
    if plot_path:
        _report.require_matplotlib()
    columns = ("{task.description}", rich.progress.BarColumn(), "{task.completed}/{task.total} cases")
    with rich.progress.Progress(*columns, rich.progress.TimeElapsedColumn(), console=_console()) as progress:
        task = progress.add_task(name, total=len(cases))
        results = _measure.compare(
            name,
            batch_size,
            wanted,
            image_size=image_size,
            steps=steps,
            on_start=lambda case: progress.update(task, description=f"{name}: {case}"),
            on_result=lambda _: progress.advance(task),
        )
    _report.print_table(_report.comparison(results))
    _report.print_table(_report.losses(results))
    if json_path:
        command = " ".join(["tfgc", *sys.argv[1:]])
        with open(json_path, "w") as file:
            file.write(_results.to_json(results, command))
    if plot_path:
        _report.plot(results, plot_path)
    failed = [r for r in results if r.status == "failed"]
    if failed:
        raise TfgcError(f"{len(failed)} of {len(results)} cases failed; {failed[0].name}: {failed[0].detail}")


def _console():
    """Progress goes to standard error, so that tables can be piped."""
    import rich.console

    return rich.console.Console(stderr=True)


def _check_writable(path):
    """Fail before an hour of measuring rather than after it."""
    new = not os.path.exists(path)
    try:
        with open(path, "a"):
            pass
    except OSError as error:
        raise TfgcError(f"cannot write {path!r}: {error.strerror}") from error
    if new:
        os.remove(path)
