// SPDX-License-Identifier: Apache-2.0
#include "gui/topology/page.h"

#include <QHBoxLayout>
#include <QPushButton>
#include <QSplitter>
#include <QVBoxLayout>

namespace orrery::gui {
namespace {

constexpr int kSteps = 1000;  // of the slider, over a step's timeline

}  // namespace

TopologyPage::TopologyPage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(8, 8, 8, 8);
  headline_ = new QLabel;
  headline_->setWordWrap(true);
  column->addWidget(headline_);
  auto* bar = new QHBoxLayout;
  when_ = new QComboBox;
  when_->setAccessibleName(tr("Use of links"));
  when_->addItem(tr("on average over the step"));
  when_->addItem(tr("at a moment of the step"));
  moment_ = new QSlider(Qt::Horizontal);
  moment_->setRange(0, kSteps);
  moment_->setValue(kSteps / 2);
  moment_->setAccessibleName(tr("Moment"));
  moment_label_ = new QLabel;
  moment_label_->setMinimumWidth(90);
  auto* fold = new QPushButton(tr("Fold again"));
  bar->addWidget(new QLabel(tr("Links are coloured by how full they are")));
  bar->addWidget(when_);
  bar->addWidget(moment_, 1);
  bar->addWidget(moment_label_);
  bar->addWidget(fold);
  column->addLayout(bar);
  auto* split = new QSplitter(Qt::Vertical);
  split->setObjectName("topology split");
  view_ = new TopologyView;
  split->addWidget(view_);
  auto* below = new QWidget;
  auto* in_below = new QVBoxLayout(below);
  in_below->setContentsMargins(0, 6, 0, 0);
  edge_label_ = new QLabel;
  edge_label_->setWordWrap(true);
  in_below->addWidget(edge_label_);
  users_ = new Table(
      tr("Traffic of the link"),
      {tr("stage"), tr("stream"), tr("groups"), tr("of the link, %"), tr("ranks of the first group")},
      tr("Click a line of the network to see whose traffic it carries."));
  in_below->addWidget(users_, 1);
  split->addWidget(below);
  split->setSizes({560, 200});
  column->addWidget(split, 1);
  soon_.setSingleShot(true);
  soon_.setInterval(20);
  connect(&soon_, &QTimer::timeout, this, [this] { redraw(); });
  connect(&session_, &Session::topology_changed, this, &TopologyPage::topology_changed);
  connect(when_, &QComboBox::currentIndexChanged, this, [this] { redraw(); });
  connect(moment_, &QSlider::valueChanged, this, [this] { soon_.start(); });
  connect(&session_.time(), &TimeView::cursor_changed, this, [this] {
    const auto cursor = session_.time().cursor();
    const TimeAxis& axis = session_.time().axis();
    if (cursor)
      moment_->setValue(static_cast<int>(kSteps * ratio(*cursor - axis.begin(), axis.end() - axis.begin())));
  });
  connect(fold, &QPushButton::clicked, this, [this] {
    view_->set_picture(nullptr);
    redraw();
  });
  connect(view_, &TopologyView::block_clicked, this, [this](std::size_t block) { redraw(block); });
  connect(view_, &TopologyView::edge_selected, this, &TopologyPage::show_edge);
  topology_changed();
}

Time TopologyPage::moment() const {
  const TimeAxis& axis = session_.time().axis();
  return axis.begin() + Time{mul_div((axis.end() - axis.begin()).value, moment_->value(), kSteps)};
}

void TopologyPage::topology_changed() {
  for (const char* kind : {"network", "link users"}) session_.jobs().cancel(kind);
  view_->set_picture(nullptr);
  users_->fill({});
  headline_->clear();
  const auto& t = session_.topology();
  const bool used = t && session_.evaluated() && session_.evaluated()->topology == t;
  when_->setEnabled(used);
  edge_label_->setText(
      used ? tr("Click a line to see whose traffic it carries, a block to open it.")
           : tr("Click a line to see its cables, a block to open it. How full links are is known "
                "once a plan is looked into."));
  if (!t) return;
  const Cluster& c = t->cluster();
  headline_->setText(tr("<b>%1</b>: %L2 nodes with %3 devices each; a node reaches the network at %4.")
                         .arg(QString::fromStdString(c.name).toHtmlEscaped())
                         .arg(c.nodes)
                         .arg(c.devices_per_node)
                         .arg(QString::fromStdString(format(c.nic_bandwidth))));
  redraw();
}

void TopologyPage::redraw(std::optional<std::size_t> open) {
  const auto topology = session_.topology();
  if (!topology) return;
  const EvaluatedPtr evaluated = session_.evaluated();
  const bool at_moment = when_->isEnabled() && when_->currentIndex() == 1;
  moment_->setEnabled(at_moment);
  moment_label_->setText(at_moment ? QString::fromStdString(format(moment())) : QString());
  const auto before = view_->picture();
  session_.jobs().start(
      "network",
      [topology, evaluated, at_moment, open, before, t = moment()](Job&) {
        auto picture = before && before->topology == topology
                           ? std::make_shared<NetworkPicture>(*before)
                           : std::make_shared<NetworkPicture>(
                                 NetworkPicture{topology, NetworkLayout(topology->network()), {}, {}});
        if (open && *open < picture->layout.blocks().size()) picture->layout.open(*open);
        if (evaluated && evaluated->topology == topology)
          picture->use =
              at_moment ? evaluated->link_use->at(evaluated->run->lanes, t) : evaluated->link_use->average();
        picture->edges = picture->layout.edges(picture->use);
        return std::shared_ptr<const NetworkPicture>(std::move(picture));
      },
      [this](std::shared_ptr<const NetworkPicture> picture) { view_->set_picture(std::move(picture)); });
}

void TopologyPage::show_edge(std::size_t edge) {
  const auto& picture = view_->picture();
  const Edge& e = picture->edges[edge];
  const sim::Network& network = picture->topology->network();
  edge_label_->setText(
      tr("%L1 cables%2; the fullest link is <b>%3</b>, %4%5.")
          .arg(e.cables)
          .arg(e.failed > 0 ? tr(", %L1 of them failed").arg(e.failed) : QString())
          .arg(QString::fromStdString(network.link_name(e.fullest)).toHtmlEscaped(),
               QString::fromStdString(format(Bandwidth{network.capacity(e.fullest)})))
          .arg(picture->use.empty() ? QString() : tr(", %1 % full").arg(100 * e.most, 0, 'f', 2)));
  users_->fill({});
  const EvaluatedPtr evaluated = session_.evaluated();
  if (!evaluated || evaluated->topology != picture->topology) return;
  session_.jobs().start(
      "link users", [evaluated, link = e.fullest](Job&) { return evaluated->link_use->users(link); },
      [this](const std::vector<sim::LinkUser>& users) {
        std::vector<std::vector<Cell>> rows;
        for (const sim::LinkUser& u : users) {
          constexpr std::size_t kMostRanks = 12;
          QStringList ranks;
          for (std::size_t i = 0; i < std::min(kMostRanks, u.ranks.size()); ++i)
            ranks << QString::number(u.ranks[i]);
          if (u.ranks.size() > kMostRanks) ranks << tr("… %L1 in all").arg(u.ranks.size());
          rows.push_back({{QString::number(u.stage), static_cast<double>(u.stage)},
                          QString::fromStdString(u.stream),
                          {QString("%L1").arg(u.groups), static_cast<double>(u.groups)},
                          {QString::number(100 * u.share, 'f', 3), 100 * u.share},
                          ranks.join(", ")});
        }
        users_->fill(rows);
      });
}

}  // namespace orrery::gui
