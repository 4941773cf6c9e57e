"""What is true on a machine with an NVIDIA GPU: builds, cancels, the engine's answers, the memory.

::

    python3 tests/run.py gpu                          # as a step of all tests
    PYTHONPATH=. python -m pytest tests/gpu -q        # in an environment that has everything

The second needs no network, if these are installed: TensorRT, what the package itself needs,
pytest, pytest-timeout, onnx, ipykernel and jupyter-client; onnxruntime for the engine's answers;
PyTorch for builds beside it; nvidia-ml-py, or the program nvidia-smi, for the GPU's memory. The GPU
should be idle otherwise: what others take and give back meanwhile is not told apart.

The other tests hide all GPUs from their process; these take back the ``CUDA_VISIBLE_DEVICES`` that
was set before, and so run in a process of their own. Without a GPU all are skipped, and the reason
says what is missing. With ``TRT_WIDGET_GPU_TESTS=dry`` they run without one, as far as they can:
the builder compiles on the CPU, the GPU's memory reads 0, and nothing is inferred. That tries the
tests, not the GPU. ``TRT_WIDGET_GPU_SEED`` is a number that the moments of the cancels follow from.

At the end the figures are printed: the device, the builds, the cancels, what TensorRT said.
"""
