"""The private modules of TensorFlow and Keras, and parts of them, that this folder reads."""
# ruff: noqa: F401

from tfgc._framework import versions

try:
    from keras.src.backend.common import global_state
    from keras.src.layers.layer import CallContext
    from keras.src.models import functional
    from tensorflow.compiler.xla.service import hlo_pb2
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.eager import context, forwardprop_util, imperative_grad, record
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.framework import op_def_registry, random_seed
    from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
    from tensorflow.python.ops import control_flow_util, gradients_util, resource_variable_ops
    from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph
    from tensorflow.python.util._pywrap_util_port import IsMklEnabled as has_onednn
    from tensorflow.python.util._pywrap_utils import IsDataTypeSupportedByOneDNNOnThisCPU as has_onednn_of
except ImportError as error:
    raise versions.unsupported(error) from error
