// How a program that builds with TensorRT writes the stream: four lines of it are about that.
#include <NvInfer.h>

#include <cstddef>
#include <fstream>
#include <memory>
#include <string>

#include "progress_stream.h"

// Build an engine and write it to a file; whoever watches `events` may cancel it.
bool build(nvinfer1::IBuilder& builder, nvinfer1::INetworkDefinition& network,
           nvinfer1::IBuilderConfig& config, std::string const& output, std::string const& events) {
  trt_widget::ProgressStream progress(events, "model.onnx");
  config.setProgressMonitor(&progress);
  std::unique_ptr<nvinfer1::IHostMemory> const plan{
      builder.buildSerializedNetwork(network, config)};
  config.setProgressMonitor(nullptr);  // it must not outlive `progress`
  if (plan == nullptr) {
    progress.finish(false);  // cancelled, if a step answered false; else failed
    return false;
  }
  std::ofstream file(output, std::ios::binary);
  file.write(static_cast<char const*>(plan->data()), static_cast<std::streamsize>(plan->size()));
  progress.finish(file.good(), output.c_str(), plan->size(), "The engine could not be written.");
  return file.good();
}
