// SPDX-License-Identifier: Apache-2.0
#include "gui/jobs.h"

#include <algorithm>
#include <exception>

namespace orrery::gui {

void Job::progress(double share) {
  if (cancelled_) throw Cancelled{};
  const int percent = static_cast<int>(share * 100);
  if (percent_.exchange(percent) == percent) return;
  Jobs* const jobs = &jobs_;
  QMetaObject::invokeMethod(
      jobs, [jobs, kind = kind_, share] { Q_EMIT jobs->progressed(kind, share); }, Qt::QueuedConnection);
}

Jobs::~Jobs() {
  for (auto& [job, thread] : threads_) job->cancelled_ = true;
}

void Jobs::launch(const QString& kind, std::function<void(Job&)> work, std::function<void()> done) {
  cancel(kind);
  const auto job = std::make_shared<Job>(*this, kind);
  jobs_[kind] = job;
  threads_.emplace_back(job, std::jthread([this, job, work = std::move(work), done = std::move(done)] {
                          QString error;
                          try {
                            work(*job);
                          } catch (const Job::Cancelled&) {
                            job->cancelled_ = true;
                          } catch (const std::bad_alloc&) {
                            error = "out of memory";
                          } catch (const std::exception& e) {
                            error = QString::fromUtf8(e.what());
                          }
                          QMetaObject::invokeMethod(
                              this, [this, job, error, done] { finish(job, error, done); },
                              Qt::QueuedConnection);
                        }));
  Q_EMIT started(kind);
}

void Jobs::finish(const std::shared_ptr<Job>& job, const QString& error, const std::function<void()>& done) {
  std::erase_if(threads_, [&](const auto& t) { return t.first == job; });  // joins: it has ended
  const auto found = jobs_.find(job->kind_);
  const bool current = found != jobs_.end() && found->second == job;
  if (!current) return;
  jobs_.erase(found);
  if (!error.isEmpty())
    Q_EMIT failed(job->kind_, error);
  else if (!job->cancelled_)
    done();
  Q_EMIT ended(job->kind_);
}

void Jobs::cancel(const QString& kind) {
  const auto found = jobs_.find(kind);
  if (found == jobs_.end()) return;
  found->second->cancelled_ = true;
  jobs_.erase(found);
  Q_EMIT ended(kind);
}

}  // namespace orrery::gui
