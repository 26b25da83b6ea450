// SPDX-License-Identifier: Apache-2.0
//
// Work beside the user interface: each job runs on a thread of its own and hands its result back as an event.
// Widgets are never touched off their thread. A job of a kind replaces the one before it, whose result is
// dropped.
//
//   jobs.start("open", [path](Job&) { return load_timeline(path); }, [this](Timeline t) { show(t); });
#pragma once

#include <QObject>
#include <QString>
#include <QThreadPool>
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace orrery::gui {

inline int hardware_threads() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

class Jobs;

// What a job's work sees of it; for use on its thread.
class Job {
 public:
  Job(Jobs& jobs, QString kind) : jobs_(jobs), kind_(std::move(kind)) {}
  bool cancelled() const { return cancelled_; }
  void go_on() const {
    if (cancelled_) throw Cancelled{};
  }
  // Says how far it is, from 0 to 1; throws Cancelled once the job is cancelled.
  void progress(double share);

  struct Cancelled {};

 private:
  friend class Jobs;
  Jobs& jobs_;
  QString kind_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<int> percent_ = -1;
};

class Jobs : public QObject {
  Q_OBJECT

 public:
  explicit Jobs(QObject* parent = nullptr) : QObject(parent) {}
  ~Jobs() override;

  // `work(Job&)` yields what `done` is called with.
  template <class Work, class Done>
  void start(const QString& kind, Work work, Done done) {
    using Result = std::invoke_result_t<Work, Job&>;
    const auto result = std::make_shared<std::unique_ptr<Result>>();
    launch(
        kind, [result, work = std::move(work)](Job& job) { *result = std::make_unique<Result>(work(job)); },
        [result, done = std::move(done)] { done(std::move(**result)); });
  }
  void cancel(const QString& kind);
  bool running(const QString& kind) const { return jobs_.contains(kind); }
  bool idle() const { return jobs_.empty(); }

 Q_SIGNALS:
  void started(const QString& kind);
  void progressed(const QString& kind, double share);
  void ended(const QString& kind);  // done, failed or cancelled
  void failed(const QString& kind, const QString& message);

 private:
  friend class Job;
  void launch(const QString& kind, std::function<void(Job&)> work, std::function<void()> done);
  void finish(const std::shared_ptr<Job>& job, const QString& error, const std::function<void()>& done);

  std::map<QString, std::shared_ptr<Job>> jobs_;  // by kind: the one whose result counts
  std::vector<std::pair<std::shared_ptr<Job>, std::jthread>> threads_;
};

// For what is large: its memory is given back on a thread of the pool, as that can take a tenth of a second
// and the last to let go may be the user interface.
template <class T, class... Args>
std::shared_ptr<T> make_large(Args&&... args) {
  return {new T(std::forward<Args>(args)...),
          [](T* value) { QThreadPool::globalInstance()->start([value] { delete value; }); }};
}

}  // namespace orrery::gui
