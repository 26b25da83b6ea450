// SPDX-License-Identifier: Apache-2.0
#include "gui/what_if/page.h"

#include <QGridLayout>
#include <QHBoxLayout>
#include <QPushButton>
#include <QVBoxLayout>
#include <cmath>

#include "gui/text.h"

namespace orrery::gui {
namespace {

// A slider's middle leaves things as they are; its ends are a factor of eight away.
constexpr int kEnd = 60;
constexpr double kFactorAtEnd = 8;

struct Knob {
  const char* name;
  double Change::*value;
};
constexpr std::array<Knob, WhatIfPage::kSliders> kKnobs{
    Knob{"NIC bandwidth", &Change::nic},
    Knob{"NVLink bandwidth", &Change::nvlink},
    Knob{"peak arithmetic", &Change::compute},
    Knob{"memory bandwidth", &Change::memory_bandwidth},
    Knob{"nodes", &Change::nodes},
    Knob{"global batch", &Change::batch},
    Knob{"price of a node", &Change::price},
};

double factor(int position) {
  return std::pow(kFactorAtEnd, static_cast<double>(position) / kEnd);
}

}  // namespace

WhatIfPage::WhatIfPage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(16, 12, 16, 12);
  headline_ = new QLabel;
  headline_->setWordWrap(true);
  column->addWidget(headline_);
  auto* grid = new QGridLayout;
  grid->setHorizontalSpacing(16);
  for (std::size_t i = 0; i < kSliders; ++i) {
    const int row = static_cast<int>(i);
    grid->addWidget(new QLabel(tr(kKnobs[i].name)), row, 0);
    auto* slider = sliders_[i] = new QSlider(Qt::Horizontal);
    slider->setRange(-kEnd, kEnd);
    slider->setPageStep(kEnd / 3);  // twice as much
    slider->setTickInterval(kEnd / 3);
    slider->setTickPosition(QSlider::TicksBelow);
    slider->setAccessibleName(tr(kKnobs[i].name));
    grid->addWidget(slider, row, 1);
    values_[i] = new QLabel;
    values_[i]->setMinimumWidth(220);
    grid->addWidget(values_[i], row, 2);
    connect(slider, &QSlider::valueChanged, this, [this] { soon_.start(); });
  }
  column->addLayout(grid);
  auto* bar = new QHBoxLayout;
  auto* as_it_is = new QPushButton(tr("As it is"));
  as_it_is->setToolTip(tr("all sliders back to the middle"));
  bar->addWidget(as_it_is);
  problem_ = new QLabel;
  problem_->setTextFormat(Qt::PlainText);
  problem_->setWordWrap(true);
  bar->addWidget(problem_, 1);
  column->addLayout(bar);
  table_ = new Table(tr("Numbers of the plan"), {tr("measure"), tr("as it is"), tr("then"), tr("change")},
                     tr("Open a plan, or plan a scenario, to change what it runs on."));
  column->addWidget(table_, 1);
  connect(as_it_is, &QPushButton::clicked, this, [this] {
    for (QSlider* s : sliders_) s->setValue(0);
  });
  // Events of one drag become one job.
  soon_.setSingleShot(true);
  soon_.setInterval(15);
  connect(&soon_, &QTimer::timeout, this, &WhatIfPage::recompute);
  connect(&session_, &Session::evaluated_changed, this, &WhatIfPage::reset);
  reset();
}

Change WhatIfPage::change() const {
  Change c;
  for (std::size_t i = 0; i < kSliders; ++i) c.*kKnobs[i].value = factor(sliders_[i]->value());
  return c;
}

void WhatIfPage::reset() {
  const EvaluatedPtr& e = session_.evaluated();
  for (QSlider* s : sliders_) s->setEnabled(e != nullptr);
  headline_->setText(
      e ? tr("<b>%1</b>, by the planner's estimate; its degrees of TP and PP stay, replicas follow the "
             "nodes and micro-batches the batch.")
              .arg(QString::fromStdString(short_name(e->plan)))
        : tr("Plan a scenario or open a plan to change its machine."));
  session_.jobs().cancel("what if");
  table_->fill({});
  problem_->clear();
  recompute();
}

void WhatIfPage::recompute() {
  const EvaluatedPtr& e = session_.evaluated();
  if (!e) return;
  const Problem& p = *session_.problem();
  const Change c = change();
  const auto scaled = [&](std::size_t i, const QString& value) {
    values_[i]->setText(tr("× %1   %2").arg(factor(sliders_[i]->value()), 0, 'f', 2).arg(value));
  };
  const auto bandwidth = [](Bandwidth b, double k) {
    return QString::fromStdString(format(Bandwidth{std::llround(static_cast<double>(b.value) * k)}));
  };
  scaled(0, bandwidth(p.cluster.nic_bandwidth, c.nic) + tr(" a node"));
  scaled(1, bandwidth(p.cluster.intra_bandwidth, c.nvlink) + tr(" a GPU"));
  const Device& device = p.devices.front();  // the first nodes stand for all, whose values scale alike
  const bool half = device.half.value > 0;
  const double peak = (half ? device.half : device.fp32).value * c.compute / 1e12;
  scaled(2, tr("%1 TFLOP/s in %2 bits").arg(number(peak, peak < 10 ? 2 : 0)).arg(half ? 16 : 32));
  scaled(3, bandwidth(device.memory_bandwidth, c.memory_bandwidth));
  scaled(4, tr("%L1 nodes").arg(std::llround(static_cast<double>(p.cluster.nodes) * c.nodes)));
  scaled(
      5,
      tr("%L1 sequences").arg(std::llround(static_cast<double>(p.scenario.training.global_batch) * c.batch)));
  scaled(6, p.cluster.node_hour.value > 0
                ? tr("$%1 an hour").arg(dollars(p.cluster.node_hour) * c.price, 0, 'f', 2)
                : tr("no price is known"));
  session_.jobs().start(
      "what if",
      [problem = session_.problem(), plan = e->plan, c](Job&) {
        return std::pair(numbers_of(*problem, plan, {}), numbers_of(*problem, plan, c));
      },
      [this](const std::pair<Numbers, Numbers>& numbers) { show_numbers(numbers); });
}

void WhatIfPage::show_numbers(const std::pair<Numbers, Numbers>& numbers) {
  const auto& [before, after] = numbers;
  problem_->setText(
      after.problem.empty() ? QString() : tr("No plan then: %1.").arg(QString::fromStdString(after.problem)));
  std::vector<std::vector<Cell>> rows;
  const bool there = after.problem.empty();
  const auto add = [&](const QString& name, double a, double b, int decimals) {
    if (a == 0 && b == 0) return;
    rows.push_back(
        {name,
         {number(a, decimals), a},
         {there ? number(b, decimals) : "-", b},
         {there && a != 0 ? QString("%1%2 %").arg(b >= a ? "+" : "").arg(100 * (b / a - 1), 0, 'f', 1) : "-",
          a != 0 ? 100 * (b / a - 1) : 0}});
  };
  rows.push_back({tr("plan"), QString::fromStdString(short_name(before.plan)),
                  there ? QString::fromStdString(short_name(after.plan)) : QString("-"), QString()});
  add(tr("devices"), static_cast<double>(before.devices), static_cast<double>(after.devices), 0);
  add(tr("step time, s"), before.step_s, after.step_s, 3);
  add(tr("tokens/s"), before.tokens_per_s, after.tokens_per_s, 0);
  add(tr("MFU, %"), 100 * before.mfu, 100 * after.mfu, 1);
  add(tr("memory, GiB"), before.gib, after.gib, 1);
  add(tr("device has, GiB"), before.capacity_gib, after.capacity_gib, 1);
  add(tr("days"), before.days, after.days, 2);
  add(tr("cost of the run, USD"), before.dollars, after.dollars, 0);
  table_->fill(rows);
}

}  // namespace orrery::gui
