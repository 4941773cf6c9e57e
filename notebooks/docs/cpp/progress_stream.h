// A progress monitor that writes a build's events as JSON Lines, and listens for a cancel.
//
//   trt_widget::ProgressStream progress("build.jsonl", "model.onnx");
//   config->setProgressMonitor(&progress);
//   auto plan = builder->buildSerializedNetwork(*network, *config);
//   progress.finish(plan != nullptr);  // or with the engine's path and size, once it is written
//
// Watch it with `trt-widget watch build.jsonl`, or in a notebook with
// BuildWidget.follow("build.jsonl"). C++17, POSIX (Linux, QNX); nothing but NvInfer.h is needed.
//
// TensorRT's threads only ever wait for a mutex that is held for moments: they put text into a
// buffer, and a thread of this object writes it, ten times a second. Where that is too slow (a pipe
// that nobody reads), phases are only counted, so the memory is bounded as well. Nothing throws.
//
// The format is in protocol.md, beside this folder.
#ifndef TRT_WIDGET_PROGRESS_STREAM_H
#define TRT_WIDGET_PROGRESS_STREAM_H

#include <NvInfer.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trt_widget {

// A text as JSON in ASCII, with its quotes. Whatever is not UTF-8 becomes U+FFFD.
inline std::string quoted(char const* text) {
  std::string out = "\"";
  auto unit = [&out](std::uint32_t code) {
    char buffer[8];
    std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(code & 0xFFFFu));
    out += buffer;
  };
  auto const* at = reinterpret_cast<unsigned char const*>(text == nullptr ? "" : text);
  while (*at != 0) {
    std::uint32_t code = *at++;
    if (code < 0x80) {
      if (code == '"' || code == '\\') {
        out += '\\';
        out += static_cast<char>(code);
      } else if (code < 0x20 || code == 0x7F) {
        unit(code);
      } else {
        out += static_cast<char>(code);
      }
      continue;
    }
    int const more = code >= 0xF0 && code < 0xF5   ? 3
                     : code >= 0xE0 && code < 0xF0 ? 2
                     : code >= 0xC2 && code < 0xE0 ? 1
                                                   : 0;
    if (more == 0) {
      unit(0xFFFD);
      continue;
    }
    code &= 0x3Fu >> more;
    int read = 0;
    while (read < more && (at[read] & 0xC0u) == 0x80u) {
      code = (code << 6) | (at[read++] & 0x3Fu);
    }
    at += read;
    bool const shortest = more == 1 || code >= (more == 2 ? 0x800u : 0x10000u);
    if (read < more || !shortest || code > 0x10FFFFu || (code >= 0xD800u && code < 0xE000u)) {
      unit(0xFFFD);
    } else if (code >= 0x10000u) {
      unit(0xD800u + ((code - 0x10000u) >> 10));
      unit(0xDC00u + ((code - 0x10000u) & 0x3FFu));
    } else {
      unit(code);
    }
  }
  return out + '"';
}

class ProgressStream final : public nvinfer1::IProgressMonitor {
 public:
  // Write to a file, a new one. Whoever watches may ask for a cancel by the file beside it, with
  // `.control` after its name.
  explicit ProgressStream(std::string const& path, char const* model = "", char const* version = "",
                          char const* backend = "tensorrt")
      : mDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)),
        mOwned(true),
        mControl(path + ".control") {
    ::unlink(mControl.c_str());  // a request that was meant for an earlier build
    begin(model, version, backend);
  }

  // Write to a descriptor (a pipe, a socket, fileno(file)), which stays open.
  explicit ProgressStream(int descriptor, char const* model = "", char const* version = "",
                          char const* backend = "tensorrt")
      : mDescriptor(descriptor), mOwned(false) {
    begin(model, version, backend);
  }

  ProgressStream(ProgressStream const&) = delete;
  ProgressStream& operator=(ProgressStream const&) = delete;

  // Ends the stream; call finish() before, or the outcome is told as not known.
  ~ProgressStream() override {
    end("ended", "unknown", nullptr, nullptr, 0);
    {
      std::lock_guard<std::mutex> const guard(mMutex);
      mStop = true;
    }
    mWake.notify_all();
    for (std::thread* thread : {&mWriter, &mListener}) {
      if (thread->joinable()) {
        thread->join();
      }
    }
    if (!mControl.empty()) {
      ::unlink(mControl.c_str());
    }
    if (mOwned && mDescriptor >= 0) {
      ::close(mDescriptor);
    }
  }

  // Tell how the build ended. `engine` and `bytes`: where its engine was written, and its size;
  // only of a build that has succeeded.
  void finish(bool succeeded, char const* engine = nullptr, std::uint64_t bytes = 0,
              char const* error = nullptr) noexcept {
    bool const cancelled = !succeeded && mDelivered.load();
    end(succeeded   ? "succeeded"
        : cancelled ? "cancelled"
                    : "failed",
        succeeded   ? "completed"
        : cancelled ? "step"
                    : "error",
        error, succeeded ? engine : nullptr, bytes);
  }

  // Have the next stepComplete() answer false. From any thread; not from a signal handler.
  void requestCancel(char const* reason = "user") noexcept {
    try {
      std::lock_guard<std::mutex> const guard(mMutex);
      if (!mCancel.exchange(true)) {
        mReason = reason;
        put("status", now(), ",\"status\":\"cancelling\",\"reason\":" + quoted(reason));
      }
    } catch (...) {
      mCancel = true;  // no memory for the words
    }
  }

  // Whether the file could be opened. The build can go on without it.
  bool good() const noexcept { return mDescriptor >= 0; }

  bool cancelRequested() const noexcept { return mCancel.load(); }

  // ---- what TensorRT calls, from any of its threads

  void phaseStart(char const* phaseName, char const* parentPhase,
                  std::int32_t nbSteps) noexcept override {
    guarded([&] {
      int const thread = threadNumber();
      Open* const parent = parentPhase == nullptr ? nullptr : find(parentPhase, thread);
      Open entry;
      entry.name = phaseName == nullptr ? "" : phaseName;
      entry.path = (parent == nullptr ? std::string() : parent->path + ",") + quoted(phaseName);
      entry.thread = thread;
      entry.start = now();
      entry.announced = nbSteps;
      entry.counted = mBuffer.size() > kMOST || (parent != nullptr && parent->counted);
      if (!entry.counted) {
        flushSteps();
        put("phase_start", entry.start,
            ",\"phase\":" + quoted(phaseName) +
                ",\"parent\":" + (parentPhase == nullptr ? "null" : quoted(parentPhase)) +
                ",\"num_steps\":" + std::to_string(nbSteps) +
                ",\"thread\":" + std::to_string(thread));
      }
      mOpen.push_back(std::move(entry));
    });
  }

  bool stepComplete(char const* phaseName, std::int32_t step) noexcept override {
    bool const go = !mCancel.load();
    guarded([&] {
      if (Open* const entry = find(phaseName, threadNumber())) {
        entry->step = step;
        entry->stepTime = now();
        entry->stepped = true;
      }
      if (!go && !mDelivered.exchange(true)) {
        flushSteps();
        put("cancel_delivered", now(), "");
      }
    });
    return go;
  }

  void phaseFinish(char const* phaseName) noexcept override {
    guarded([&] {
      Open* const entry = find(phaseName, threadNumber());
      if (entry == nullptr) {
        return;
      }
      double const time = now();
      if (entry->counted) {
        Total& total = mTotals[entry->path];
        ++total.count;
        total.seconds += time - entry->start;
        total.longest = std::max(total.longest, time - entry->start);
        total.steps += entry->step + 1;
        total.announced += std::max(entry->announced, 0);
      } else {
        flushSteps();
        put("phase_finish", time,
            ",\"phase\":" + quoted(phaseName) + ",\"thread\":" + std::to_string(entry->thread));
      }
      mOpen.erase(mOpen.begin() + (entry - mOpen.data()));
    });
  }

 private:
  struct Open {
    std::string name;
    std::string path;  // the names from the root down, quoted, with commas
    int thread{0};
    double start{0.0};
    std::int32_t announced{0};
    std::int32_t step{-1};
    double stepTime{0.0};
    bool stepped{false};  // a step is to be told
    bool counted{false};  // only its sum is told
  };
  struct Total {
    std::int64_t count{0};
    double seconds{0.0};
    double longest{0.0};
    std::int64_t steps{0};
    std::int64_t announced{0};
  };

  static constexpr std::size_t kMOST = 4u << 20;  // bytes that wait before phases are only counted
  static constexpr std::size_t kPIECE = 4096;     // what a pipe that can be written takes at once
  static constexpr auto kTICK = std::chrono::milliseconds(100);
  static constexpr auto kLOOK = std::chrono::milliseconds(200);
  static constexpr auto kLAST_WORDS = std::chrono::seconds(2);

  void begin(char const* model, char const* version, char const* backend) {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    std::string host = name;
    struct stat space{};
    if (::stat("/proc/self/ns/pid", &space) == 0) {
      host += "/" + std::to_string(space.st_ino);
    }
    bool listens = mDescriptor >= 0 && !mControl.empty();
    try {
      if (listens) {
        mListener = std::thread([this] { listen(); });
      }
    } catch (...) {
      listens = false;  // no more threads: nobody is promised anything
    }
    std::lock_guard<std::mutex> const guard(mMutex);
    put("stream_start", 0.0,
        ",\"model\":" + quoted(model) + ",\"backend\":" + quoted(backend) +
            ",\"backend_version\":" + quoted(version) +
            ",\"version\":1,\"pid\":" + std::to_string(::getpid()) +
            ",\"host\":" + quoted(host.c_str()) + ",\"listens\":" + (listens ? "true" : "false"));
    try {
      if (mDescriptor >= 0) {
        mWriter = std::thread([this] { write(); });
      }
    } catch (...) {
      // The build goes on unseen.
    }
  }

  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - mOrigin).count();
  }

  template <typename Body>
  void guarded(Body const& body) noexcept {
    try {
      std::lock_guard<std::mutex> const guard(mMutex);
      body();
    } catch (...) {
      // No memory: this event is lost, and the build goes on.
    }
  }

  // The functions below are called with the mutex held.

  void put(char const* event, double time, std::string const& rest) {
    char buffer[64];
    std::snprintf(
        buffer, sizeof buffer, "\",\"time\":%lld.%06d", static_cast<long long>(time),
        static_cast<int>((time - static_cast<double>(static_cast<long long>(time))) * 1e6));
    mBuffer += std::string("{\"event\":\"") + event + buffer + rest + "}\n";
  }

  // The last step of each phase, as late as can be: TensorRT may report 40,000 a second.
  void flushSteps() {
    for (Open& entry : mOpen) {
      if (entry.stepped && !entry.counted) {
        entry.stepped = false;
        put("step_complete", entry.stepTime,
            ",\"phase\":" + quoted(entry.name.c_str()) + ",\"step\":" + std::to_string(entry.step) +
                ",\"thread\":" + std::to_string(entry.thread));
      }
    }
  }

  void flushTotals() {
    for (auto const& [path, total] : mTotals) {
      char times[96];
      std::snprintf(times, sizeof times, "%.6f %.6f", total.seconds, total.longest);
      std::string seconds = times;
      std::replace(seconds.begin(), seconds.end(), ',', '.');  // the locale of the program
      auto const gap = seconds.find(' ');
      put("phases_collapsed", now(),
          ",\"path\":[" + path + "],\"count\":" + std::to_string(total.count) +
              ",\"total_s\":" + seconds.substr(0, gap) + ",\"max_s\":" + seconds.substr(gap + 1) +
              ",\"steps\":" + std::to_string(total.steps) +
              ",\"num_steps\":" + std::to_string(total.announced));
    }
    mTotals.clear();
  }

  Open* find(char const* name, int thread) {
    Open* found = nullptr;
    for (auto entry = mOpen.rbegin(); entry != mOpen.rend(); ++entry) {
      if (entry->name == (name == nullptr ? "" : name)) {
        if (entry->thread == thread) {
          return &*entry;
        }
        found = found == nullptr ? &*entry : found;
      }
    }
    return found;
  }

  int threadNumber() {
    return mThreads.emplace(std::this_thread::get_id(), static_cast<int>(mThreads.size()) + 1)
        .first->second;
  }

  void end(char const* status, char const* endedBy, char const* error, char const* engine,
           std::uint64_t bytes) noexcept {
    guarded([&] {
      if (mEnded) {
        return;
      }
      flushSteps();
      flushTotals();
      std::string rest =
          std::string(",\"status\":\"") + status + "\",\"ended_by\":\"" + endedBy + "\"";
      if (mDelivered.load()) {
        rest += ",\"reason\":" + quoted(mReason.c_str());
      }
      if (std::string(status) == "failed") {
        rest += ",\"error\":{\"class\":\"BuildFailed\",\"cause\":" +
                quoted(error == nullptr ? "TensorRT returned no engine." : error) +
                ",\"remedy\":\"Its messages went to the logger that the builder was made "
                "with.\",\"messages\":[],\"evidence\":[]}";
      }
      if (engine != nullptr) {
        rest += ",\"engine\":" + quoted(engine) + ",\"engine_bytes\":" + std::to_string(bytes);
      }
      put("end", now(), rest);
      mEnded = true;
    });
    mWake.notify_all();
  }

  // ---- the thread that writes

  void write() {
    // A reader that has gone must not end the program.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::string text;
    std::size_t written = 0;
    bool stopping = false;
    auto deadline = std::chrono::steady_clock::time_point::max();
    while (true) {
      if (written == text.size()) {
        if (stopping) {
          return;
        }
        std::unique_lock<std::mutex> guard(mMutex);
        mWake.wait_for(guard, kTICK, [this] { return mStop; });
        flushSteps();
        if (mBuffer.size() <= kMOST) {
          flushTotals();
        }
        text.clear();
        written = 0;
        text.swap(mBuffer);
        stopping = mStop;
      } else {
        std::lock_guard<std::mutex> const guard(mMutex);
        if (mStop && deadline == std::chrono::steady_clock::time_point::max()) {
          deadline = std::chrono::steady_clock::now() + kLAST_WORDS;
        }
      }
      if (std::chrono::steady_clock::now() > deadline) {
        return;  // nobody reads
      }
      struct pollfd ready{mDescriptor, POLLOUT, 0};
      if (text.size() > written && ::poll(&ready, 1, 100) > 0) {
        auto const size =
            ::write(mDescriptor, text.data() + written, std::min(kPIECE, text.size() - written));
        if (size > 0) {
          written += static_cast<std::size_t>(size);
        } else if (size < 0 && errno != EINTR && errno != EAGAIN) {
          written = text.size();  // gone, or the disk is full: what comes may be written again
        }
      }
    }
  }

  // ---- the thread that listens

  void listen() {
    off_t offset = 0;
    std::string rest;
    while (true) {
      {
        std::unique_lock<std::mutex> guard(mMutex);
        if (mWake.wait_for(guard, kLOOK, [this] { return mStop; })) {
          return;
        }
      }
      int const control = ::open(mControl.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
      if (control < 0) {
        continue;
      }
      char buffer[4096];
      ssize_t size = 0;
      while ((size = ::pread(control, buffer, sizeof buffer, offset)) > 0) {
        offset += size;
        rest.append(buffer, static_cast<std::size_t>(size));
        std::size_t line = 0;
        while ((line = rest.find('\n')) != std::string::npos) {
          take(rest.substr(0, line));
          rest.erase(0, line + 1);
        }
        if (rest.size() > 65536) {
          rest.clear();
        }
      }
      ::close(control);
    }
  }

  // One line: {"request":"cancel","reason":"user"}
  void take(std::string const& line) {
    auto value = [&line](std::string const& key) {
      auto at = line.find("\"" + key + "\"");
      at = at == std::string::npos ? at : line.find('"', line.find(':', at));
      auto const stop = at == std::string::npos ? at : line.find('"', at + 1);
      return stop == std::string::npos ? std::string() : line.substr(at + 1, stop - at - 1);
    };
    if (value("request") == "cancel") {
      std::string const reason = value("reason");
      for (char const* known : {"deadline", "interrupt", "closed"}) {
        if (reason == known) {
          requestCancel(known);
        }
      }
      requestCancel("user");
    }
  }

  std::chrono::steady_clock::time_point const mOrigin{std::chrono::steady_clock::now()};
  int const mDescriptor;
  bool const mOwned;
  std::string const mControl;
  std::atomic<bool> mCancel{false};
  std::atomic<bool> mDelivered{false};
  std::mutex mMutex;
  std::condition_variable mWake;
  std::string mBuffer;
  std::string mReason{"user"};
  std::vector<Open> mOpen;
  std::map<std::string, Total> mTotals;
  std::map<std::thread::id, int> mThreads;
  bool mStop{false};
  bool mEnded{false};
  std::thread mWriter;
  std::thread mListener;
};

}  // namespace trt_widget

#endif  // TRT_WIDGET_PROGRESS_STREAM_H
