"""Measure what `tfgc.enable` saves in models of KerasHub, and verify that they train as before.

Runs one process for each case: `fit` plain; `tfgc.enable(model)` as the only change; by a plan made ahead from an
example; with budgets of 70 % and 50 % of the plain step. Peaks are those of TensorFlow's allocator, above what was
there before the step: the largest of the last five of eight steps. Models are small, with random weights and data.
KerasHub is installed into the folder .kerashub if it is missing, without what only its preprocessors need.

    python scripts/kerashub.py               # all models, about an hour on two cores
    python scripts/kerashub.py vit gpt2      # these models
    python scripts/kerashub.py --table       # print the saved results

Results are saved in scripts/results/kerashub.json.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # else TensorFlow counts no memory on some CPUs

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "scripts" / "results" / "kerashub.json"
PACKAGES = ROOT / ".kerashub"
REQUIRED = ("keras-hub==0.32.0", "regex", "tokenizers")
SIDES = ("plain", "enable", "ahead", "70%", "50%", "verify")
STEPS, LAST = 8, 5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES, help="default: all")
    parser.add_argument("--table", action="store_true", help="print the table of the saved results and run nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(MODELS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(MODELS)}")
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.table:
        server = fork_server()
        for name in arguments.models or MODELS:
            for side in arguments.sides:
                saved.setdefault(name, {})[side] = figures = in_process(server, measure, name, side)
                print(name, side, figures, flush=True)
                RESULTS.write_text(json.dumps(saved, indent=1) + "\n")
    print(*table(saved), sep="\n")


def fork_server():
    """Start processes from one that has imported KerasHub, installed if need be."""
    if not PACKAGES.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PACKAGES), *REQUIRED]
        subprocess.run(pip, check=True)
    path = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    os.environ |= {"PYTHONPATH": os.pathsep.join(path), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["keras_hub", "tfgc"])
    return server


def in_process(server, function, *arguments):
    """Run one case in its own process; return its figures, or how it failed."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=server) as process:
        try:
            return process.submit(function, *arguments).result()
        except Exception as error:  # whatever fails is a row of the table
            return {"failed": f"{type(error).__name__}: {error}"[:600]}


def measure(name, side):
    """Train a model for some steps, or verify it; return the figures."""
    import keras
    import tensorflow as tf

    import tfgc

    told = []
    warnings.showwarning = lambda message, category, *_: told.append(f"{category.__name__}: {message}")
    keras.utils.set_random_seed(1)
    model, x, y, loss = MODELS[name]()
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=[])
    model.optimizer.build(model.trainable_variables)  # else TensorFlow traces the step twice
    if side == "verify":
        verdict = tfgc.verify(model, None, (x, y), modes="graph", steps=2)
        return {"equal": bool(verdict), "told": told} | ({} if verdict else {"verdict": str(verdict)})
    begin, cpu = time.perf_counter(), time.process_time()
    if side == "ahead":
        tfgc.enable(model, tfgc.plan(model, example=x))
    elif side != "plain":
        tfgc.enable(model, budget=None if side == "enable" else side, verbose=0)
    ahead = time.perf_counter() - begin
    peaks = []

    class Peaks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            tf.config.experimental.reset_memory_stats("CPU:0")
            self.base = tf.config.experimental.get_memory_info("CPU:0")["current"]

        def on_train_batch_end(self, batch, logs=None):
            peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - self.base)

    data = tf.data.Dataset.from_tensors((x, y)).repeat(STEPS)
    model.fit(data, verbose=0, shuffle=False, callbacks=[Peaks()])
    held = tf.config.experimental.get_memory_info("CPU:0")["current"]
    figures = {"peak": max(peaks[-LAST:]), "median": statistics.median(peaks[-LAST:]), "held": held, "told": told}
    if side == "plain":
        return figures
    made = tfgc.status(model).plans[0]
    # Of the processor, which depends less on what else the machine does.
    share = (made.planning_seconds or ahead) / (time.perf_counter() - begin)
    return figures | {
        "strategy": made.plan.strategy,
        "planning": share * (time.process_time() - cpu),
        "overhead": made.overhead,
        "predicted": made.predicted_bytes,
        "predicted_plain": made.plain_bytes,
    }


def table(saved):
    """Yield lines of Markdown: the shares of the plain step, which budgets count with what is there all the time."""
    yield "| model | plain | enabled | verify | predicted / measured | ahead | budget 70 % | budget 50 % |"
    yield "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    for name, sides in saved.items():
        if "enable" in sides and "peak" in sides.get("plain", {}):
            yield f"| {name} | " + " | ".join(cells(sides)) + " |"


def cells(sides):
    plain, enabled = sides["plain"], sides["enable"]
    whole = plain["peak"] + plain["held"]
    yield f"{plain['peak'] / 1e6:.0f} MB"
    yield cell(sides, "enable", lambda figures: f"{figures['peak'] / plain['peak']:.2f}")
    yield cell(sides, "verify", lambda figures: "equal" if figures["equal"] else "differs")
    yield f"{enabled['predicted'] / (enabled['peak'] + enabled['held']):.2f}" if "predicted" in enabled else "-"
    yield cell(sides, "ahead", lambda figures: f"{figures['peak'] / plain['peak']:.2f}")
    for side in ("70%", "50%"):
        yield cell(sides, side, lambda figures: f"{(figures['peak'] + figures['held']) / whole:.0%}")


def cell(sides, side, shown):
    """What is shown of one case; one that failed, or was not run, stands as that."""
    figures = sides.get(side, {"failed": "not run"})
    return figures["failed"].partition(":")[0] if "failed" in figures else shown(figures)


def numbers(shape, below=None):
    import numpy as np

    random = np.random.default_rng(0)
    return random.normal(size=shape).astype("float32") if below is None else random.integers(0, below, shape, "int32")


def tokens(batch, length, vocabulary, prefix=""):
    mask = numbers((batch, length), 1) + 1
    mask[:, -length // 8 :] = 0
    return {f"{prefix}token_ids": numbers((batch, length), vocabulary), f"{prefix}padding_mask": mask}


def classes():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


TRANSFORMER = {"num_layers": 4, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}
LAYERS = {"num_layers": 2, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}


def vit():
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    backbone = ViTBackbone(
        image_shape=(64, 64, 3), patch_size=8, num_layers=6, num_heads=4, hidden_dim=128, mlp_dim=512, dropout_rate=0.1
    )
    model = ViTImageClassifier(backbone, num_classes=10)
    return model, numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def gpt2():
    from keras_hub.models import GPT2Backbone, GPT2CausalLM

    model = GPT2CausalLM(GPT2Backbone(vocabulary_size=1000, max_sequence_length=128, **TRANSFORMER))
    return model, tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def t5():
    import keras
    from keras_hub.models import T5Backbone

    backbone = T5Backbone(vocabulary_size=1000, **LAYERS)
    decoded = backbone.output["decoder_sequence_output"]
    model = keras.Model(backbone.input, backbone.token_embedding(decoded, reverse=True))
    x = tokens(8, 128, 1000, "encoder_") | tokens(8, 64, 1000, "decoder_")
    return model, x, numbers((8, 64), 1000), classes()


def whisper():
    import keras
    from keras_hub.models import WhisperBackbone

    backbone = WhisperBackbone(vocabulary_size=1000, dropout=0.1, max_encoder_sequence_length=400, **LAYERS)
    decoded = backbone.output["decoder_sequence_output"]
    model = keras.Model(backbone.input, backbone.token_embedding(decoded, reverse=True))
    x = {"encoder_features": numbers((8, 400, 80)), **tokens(8, 64, 1000, "decoder_")}
    return model, x, numbers((8, 64), 1000), classes()


def bert():
    from keras_hub.models import BertBackbone, BertMaskedLM

    model = BertMaskedLM(BertBackbone(vocabulary_size=1000, max_sequence_length=128, **TRANSFORMER))
    x = {**tokens(8, 128, 1000), "segment_ids": numbers((8, 128), 2), "mask_positions": numbers((8, 16), 128)}
    return model, x, numbers((8, 16), 1000), classes()


def deberta():
    from keras_hub.models import DebertaV3Backbone, DebertaV3TextClassifier

    backbone = DebertaV3Backbone(vocabulary_size=1000, max_sequence_length=128, bucket_size=32, **TRANSFORMER)
    return DebertaV3TextClassifier(backbone, num_classes=4), tokens(8, 128, 1000), numbers((8,), 4), classes()


def llama():
    from keras_hub.models import LlamaBackbone, LlamaCausalLM

    backbone = LlamaBackbone(
        vocabulary_size=1000, num_layers=4, num_query_heads=4, num_key_value_heads=2, hidden_dim=128,
        intermediate_dim=384,
    )  # fmt: skip
    return LlamaCausalLM(backbone), tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def gemma():
    from keras_hub.models import GemmaBackbone, GemmaCausalLM

    backbone = GemmaBackbone(
        vocabulary_size=1000, num_layers=4, num_query_heads=4, num_key_value_heads=1, hidden_dim=128,
        intermediate_dim=512, head_dim=32,
    )  # fmt: skip
    return GemmaCausalLM(backbone), tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def mixtral():
    from keras_hub.models import MixtralBackbone, MixtralCausalLM

    backbone = MixtralBackbone(
        vocabulary_size=1000, num_layers=4, num_query_heads=4, num_key_value_heads=2, hidden_dim=128,
        intermediate_dim=128, num_experts=4,
    )  # fmt: skip
    return MixtralCausalLM(backbone), tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def swin():
    import keras
    from keras_hub.models import SwinTransformerBackbone

    backbone = SwinTransformerBackbone(
        image_shape=(64, 64, 3), embed_dim=48, depths=(2, 2, 4), num_heads=(2, 4, 8), window_size=4, patch_size=2
    )
    pooled = keras.layers.GlobalAveragePooling1D()(backbone.output)
    model = keras.Model(backbone.input, keras.layers.Dense(10)(pooled))
    return model, numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def segformer():
    from keras_hub.models import MiTBackbone, SegFormerBackbone, SegFormerImageSegmenter

    encoder = MiTBackbone(
        image_shape=(64, 64, 3), num_layers=4, hidden_dims=[16, 32, 64, 128], layerwise_depths=[2, 2, 2, 2],
        layerwise_num_heads=[1, 2, 4, 8], layerwise_sr_ratios=[8, 4, 2, 1], layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2], max_drop_path_rate=0.1,
    )  # fmt: skip
    model = SegFormerImageSegmenter(SegFormerBackbone(image_encoder=encoder, projection_filters=64), num_classes=5)
    return model, numbers((8, 64, 64, 3)), numbers((8, 64, 64), 5), classes()


def vitdet():
    from keras_hub.models import ViTDetBackbone

    model = ViTDetBackbone(
        hidden_size=128, num_layers=4, intermediate_dim=512, num_heads=4, global_attention_layer_indices=[1, 3],
        patch_size=8, num_output_channels=32, window_size=4, image_shape=(128, 128, 3),
    )  # fmt: skip
    return model, numbers((4, 128, 128, 3)), numbers((4, 16, 16, 32)), "mse"


def resnet():
    from keras_hub.models import ImageClassifier, ResNetBackbone

    backbone = ResNetBackbone(
        input_conv_filters=[32], input_conv_kernel_sizes=[7], stackwise_num_filters=[64, 96, 128],
        stackwise_num_blocks=[3, 4, 3], stackwise_num_strides=[1, 2, 2], block_type="bottleneck_block",
    )  # fmt: skip
    return ImageClassifier(backbone, 10), numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def densenet():
    from keras_hub.models import DenseNetBackbone, ImageClassifier

    backbone = DenseNetBackbone(stackwise_num_repeats=[4, 8, 6], growth_rate=16, image_shape=(64, 64, 3))
    return ImageClassifier(backbone, 10), numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def vae():
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    model = VAEBackbone([32, 64, 64], [2, 2, 2], [64, 64, 32], [2, 2, 2], sample_channels=16)
    x = numbers((4, 64, 64, 3))
    return model, x, x, "mse"


def mmdit():
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    model = MMDiT(
        patch_size=2, hidden_dim=128, num_layers=4, num_heads=4, position_size=16, latent_shape=(32, 32, 8),
        context_shape=(None, 64), pooled_projection_shape=(64,), qk_norm="rms_norm",
    )  # fmt: skip
    latent = numbers((4, 32, 32, 8))
    x = {"latent": latent, "context": numbers((4, 32, 64)), "pooled_projection": numbers((4, 64))}
    return model, {**x, "timestep": numbers((4, 1))}, latent, "mse"


MODELS = {
    function.__name__: function
    for function in (
        vit, gpt2, t5, whisper, bert, deberta, llama, gemma, mixtral, swin, segformer, vitdet, resnet, densenet, vae,
        mmdit,
    )
}  # fmt: skip


if __name__ == "__main__":
    main()
