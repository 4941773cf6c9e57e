// Not NVIDIA's header, which is on no package registry: a stand-in for the tests, with as much of
// the interface of TensorRT 10 as progress_stream.h and example.cpp use. The signatures are those
// of NVIDIA's documentation and samples; only IProgressMonitor is ever called here.
#ifndef NV_INFER_H
#define NV_INFER_H

#include <cstddef>
#include <cstdint>

namespace nvinfer1 {

class IProgressMonitor {
 public:
  IProgressMonitor() = default;
  virtual ~IProgressMonitor() noexcept = default;
  virtual void phaseStart(char const* phaseName, char const* parentPhase,
                          std::int32_t nbSteps) noexcept = 0;
  virtual bool stepComplete(char const* phaseName, std::int32_t step) noexcept = 0;
  virtual void phaseFinish(char const* phaseName) noexcept = 0;
};

class INetworkDefinition {
 public:
  virtual ~INetworkDefinition() noexcept = default;
};

class IHostMemory {
 public:
  virtual ~IHostMemory() noexcept = default;
  void* data() const noexcept;
  std::size_t size() const noexcept;
};

class IBuilderConfig {
 public:
  virtual ~IBuilderConfig() noexcept = default;
  void setProgressMonitor(IProgressMonitor* monitor) noexcept;
};

class IBuilder {
 public:
  virtual ~IBuilder() noexcept = default;
  IHostMemory* buildSerializedNetwork(INetworkDefinition& network, IBuilderConfig& config) noexcept;
};

}  // namespace nvinfer1

#endif  // NV_INFER_H
