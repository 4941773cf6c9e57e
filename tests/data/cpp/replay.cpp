// Calls a ProgressStream as TensorRT did when the trace was recorded, and obeys its answers.
//
//   replay TARGET MODEL MICROSECONDS < callbacks
//
// TARGET is a path, or "-" for standard output. Each line of the input is a callback, its fields
// separated by tabs: "start NAME PARENT STEPS", "step NAME INDEX", "finish NAME"; "." is no parent.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "progress_stream.h"

int main(int count, char** arguments) {
  if (count != 4) {
    return 2;
  }
  std::string const target = arguments[1];
  auto const pause = std::chrono::microseconds(std::stol(arguments[3]));
  auto const progress = target == "-"
                            ? std::make_unique<trt_widget::ProgressStream>(1, arguments[2])
                            : std::make_unique<trt_widget::ProgressStream>(target, arguments[2]);
  nvinfer1::IProgressMonitor& monitor = *progress;
  std::vector<std::string> open;
  bool go = true;
  long called = 0;
  auto longest = std::chrono::steady_clock::duration::zero();
  for (std::string line; go && std::getline(std::cin, line); ++called) {
    std::vector<std::string> fields;
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, '\t');) {
      fields.push_back(cell);
    }
    auto const before = std::chrono::steady_clock::now();
    if (fields[0] == "start") {
      monitor.phaseStart(fields[1].c_str(), fields[2] == "." ? nullptr : fields[2].c_str(),
                         std::stoi(fields[3]));
      open.push_back(fields[1]);
    } else if (fields[0] == "step") {
      go = monitor.stepComplete(fields[1].c_str(), std::stoi(fields[2]));
    } else {
      monitor.phaseFinish(fields[1].c_str());
      for (auto entry = open.end(); entry != open.begin();) {
        if (*--entry == fields[1]) {
          open.erase(entry);
          break;
        }
      }
    }
    longest = std::max(longest, std::chrono::steady_clock::now() - before);
    if (pause.count() > 0) {
      std::this_thread::sleep_for(pause);
    }
  }
  while (!go && !open.empty()) {  // as TensorRT unwinds: innermost first
    monitor.phaseFinish(open.back().c_str());
    open.pop_back();
  }
  progress->finish(go, go ? "replayed.engine" : nullptr, go ? 4711 : 0);
  std::cerr << (go ? "true " : "false ") << called << ' '
            << std::chrono::duration_cast<std::chrono::microseconds>(longest).count() << std::endl;
  return 0;
}
