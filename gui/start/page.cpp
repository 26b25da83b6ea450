// SPDX-License-Identifier: Apache-2.0
#include "gui/start/page.h"

#include <QDoubleValidator>
#include <QFileInfo>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLabel>
#include <QSettings>
#include <QShortcut>
#include <QVBoxLayout>

#include "core/error.h"
#include "core/json.h"
#include "core/model.h"

namespace orrery::gui {
namespace {

constexpr int kMostRecent = 12;
constexpr int kPathRole = Qt::UserRole;

QListWidgetItem* item_of(const QString& text, const QString& path) {
  auto* item = new QListWidgetItem(text);
  item->setData(kPathRole, path);
  item->setToolTip(path);
  return item;
}

// What a scenario says that it is.
QString title_of(const std::filesystem::path& path) {
  try {
    const Json json = load_json(path);
    if (json.is_object() && json.contains("name") && json["name"].is_string())
      return QString::fromStdString(json["name"].get<std::string>());
  } catch (const Error&) {  // opening it says what is wrong
  }
  return QString::fromStdString(path.stem().string());
}

QLabel* heading(const QString& text) {
  auto* label = new QLabel("<b>" + text + "</b>");
  label->setContentsMargins(0, 8, 0, 2);
  return label;
}

}  // namespace

QStringList recent_files() {
  QStringList out;
  for (const QString& path : QSettings().value("recent").toStringList()) {
    if (QFileInfo(path).isFile()) out << path;
  }
  return out;
}

void remember_file(const QString& path) {
  const QString whole = QFileInfo(path).absoluteFilePath();
  QStringList files = recent_files();
  files.removeAll(whole);
  files.prepend(whole);
  QSettings().setValue("recent", QStringList(files.mid(0, kMostRecent)));
}

StartPage::StartPage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(28, 20, 28, 16);
  auto* title = new QLabel(tr(
      "<span style='font-size:20pt'>Orrery</span><br>Which plan trains a model fastest, how long that takes, "
      "what it costs, and how sure that is."));
  column->addWidget(title);
  auto* row = new QHBoxLayout;
  row->setSpacing(36);
  row->addWidget(build_form(), 2);
  row->addWidget(build_files(), 3);
  column->addLayout(row, 1);
  connect(&session_, &Session::opened, this, [this](const QString& path) {
    remember_file(path);
    fill_recent();
  });
}

QWidget* StartPage::build_form() {
  auto* out = new QWidget;
  auto* column = new QVBoxLayout(out);
  column->setContentsMargins(0, 0, 0, 0);
  column->addWidget(heading(tr("Plan without a file")));
  auto* form = new QFormLayout;
  model_ = new QComboBox;
  for (const std::string& name : preset_model_names()) model_->addItem(QString::fromStdString(name));
  model_->setEditable(true);
  model_->setToolTip(tr("a model that ships, or the path of a config.json of Hugging Face"));
  cluster_ = new QComboBox;
  for (const std::string& name : session_.data().names("topologies"))
    cluster_->addItem(QString::fromStdString(name));
  cluster_->setToolTip(tr("a cluster that ships: its nodes, network and prices"));
  const auto count = [](int least, int most, int value) {
    auto* box = new QSpinBox;
    box->setRange(least, most);
    box->setValue(value);
    box->setGroupSeparatorShown(true);
    return box;
  };
  nodes_ = count(0, static_cast<int>(limits::kMostNodes), 4);
  nodes_->setSpecialValueText(tr("as many as it has"));
  batch_ = count(1, 1 << 20, 1024);
  sequence_ = count(1, 1 << 24, 8192);
  tokens_ = new QLineEdit("1e12");
  auto* number = new QDoubleValidator(0, 1e18, 3, tokens_);
  number->setLocale(QLocale::c());
  tokens_->setValidator(number);
  tokens_->setToolTip(tr("of the whole run, like 15e12: for days and dollars; empty: of a step alone"));
  model_->setCurrentText("llama-3.1-8b");
  cluster_->setCurrentText("p5");
  form->addRow(tr("Model"), model_);
  form->addRow(tr("Cluster"), cluster_);
  form->addRow(tr("Nodes"), nodes_);
  form->addRow(tr("Sequences of a step"), batch_);
  form->addRow(tr("Tokens of a sequence"), sequence_);
  form->addRow(tr("Tokens of the run"), tokens_);
  column->addLayout(form);
  plan_ = new QPushButton(tr("Find the best plan"));
  column->addWidget(plan_);
  column->addStretch(1);
  connect(plan_, &QPushButton::clicked, this,
          [this] { session_.open(scenario(), tr("what was asked for")); });
  // Enter plans, wherever it is typed in the form.
  for (const int key : {Qt::Key_Return, Qt::Key_Enter}) {
    auto* enter = new QShortcut(QKeySequence(key), out);
    enter->setContext(Qt::WidgetWithChildrenShortcut);
    connect(enter, &QShortcut::activated, plan_, &QPushButton::click);
  }
  // "1e" is no number, and not as if nothing stood there.
  connect(tokens_, &QLineEdit::textChanged, plan_, [this](const QString& text) {
    plan_->setEnabled(text.isEmpty() || tokens_->hasAcceptableInput());
  });
  return out;
}

QWidget* StartPage::build_files() {
  auto* out = new QWidget;
  auto* column = new QVBoxLayout(out);
  column->setContentsMargins(0, 0, 0, 0);
  const auto list = [&](const QString& name) {
    auto* files = new QListWidget;
    files->setAccessibleName(name);
    files->setAlternatingRowColors(true);
    column->addWidget(heading(name));
    column->addWidget(files, 1);
    files->setToolTip(tr("double-click, or Enter"));
    connect(files, &QListWidget::itemActivated, this,
            [this](QListWidgetItem* item) { session_.open(item->data(kPathRole).toString()); });
    return files;
  };
  recent_ = list(tr("Open again"));
  auto* other = new QPushButton(tr("Open another file …"));
  connect(other, &QPushButton::clicked, this, &StartPage::wants_file);
  column->addWidget(other);
  examples_ = list(tr("Examples"));
  for (const std::string& name : session_.data().names("scenarios")) {
    const auto path = session_.data().find("scenarios", name, {}, {});
    examples_->addItem(item_of(title_of(path), QString::fromStdString(path.string())));
  }
  fill_recent();
  return out;
}

void StartPage::fill_recent() {
  recent_->clear();
  for (const QString& path : recent_files()) recent_->addItem(item_of(QFileInfo(path).fileName(), path));
  if (recent_->count() > 0) return;
  auto* hint = new QListWidgetItem(tr("Files that you open come here."));
  hint->setFlags(Qt::NoItemFlags);
  recent_->addItem(hint);
}

Json StartPage::scenario() const {
  const std::string model = model_->currentText().toStdString();
  Json out{{"name", model + " on " + cluster_->currentText().toStdString()},
           {"model", model.ends_with(".json") ? Json{{"config", model}} : Json(model)},
           {"cluster", {{"topology", cluster_->currentText().toStdString()}}},
           {"training", {{"global_batch", batch_->value()}, {"sequence", sequence_->value()}}}};
  if (nodes_->value() > 0) out["cluster"]["nodes"] = nodes_->value();
  if (const double tokens = tokens_->text().toDouble(); tokens > 0) out["training"]["tokens"] = tokens;
  return out;
}

}  // namespace orrery::gui
