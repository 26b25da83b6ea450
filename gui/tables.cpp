// SPDX-License-Identifier: Apache-2.0
#include "gui/tables.h"

#include <QAbstractTableModel>
#include <QApplication>
#include <QClipboard>
#include <QHeaderView>
#include <QKeyEvent>
#include <QPainter>
#include <algorithm>

#include "gui/theme.h"

namespace orrery::gui {

class CellModel : public QAbstractTableModel {
 public:
  CellModel(QStringList headers, QObject* parent)
      : QAbstractTableModel(parent), headers_(std::move(headers)) {}

  void fill(std::vector<std::vector<Cell>> rows) {
    beginResetModel();
    rows_ = std::move(rows);
    endResetModel();
  }
  // Null: there is no such cell.
  const Cell* cell(int row, int column) const {
    if (row < 0 || row >= rowCount({})) return nullptr;
    const auto& cells = rows_[static_cast<std::size_t>(row)];
    return column >= 0 && column < static_cast<int>(cells.size()) ? &cells[static_cast<std::size_t>(column)]
                                                                  : nullptr;
  }

  int rowCount(const QModelIndex& parent) const override {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
  }
  int columnCount(const QModelIndex& parent) const override {
    return parent.isValid() ? 0 : static_cast<int>(headers_.size());
  }
  QVariant data(const QModelIndex& at, int role) const override {
    const Cell* const c = cell(at.row(), at.column());
    if (c == nullptr) return {};
    if (role == Qt::DisplayRole) return c->text;
    if (role == Qt::TextAlignmentRole) return QVariant(alignment(c));
    return {};
  }
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override {
    if (orientation != Qt::Horizontal || section < 0 || section >= headers_.size()) return {};
    if (role == Qt::DisplayRole) return headers_[section];
    if (role == Qt::TextAlignmentRole) return QVariant(alignment(cell(0, section)));
    return {};
  }

 private:
  static Qt::Alignment alignment(const Cell* c) {
    return (c != nullptr && c->sort.isValid() ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter;
  }

  QStringList headers_;
  std::vector<std::vector<Cell>> rows_;
};

namespace {

const Cell* cell_at(const QModelIndex& at) {
  return static_cast<const CellModel*>(at.model())->cell(at.row(), at.column());
}

QString csv_field(const QString& text) {
  if (!text.contains(',') && !text.contains('"') && !text.contains('\n')) return text;
  return '"' + QString(text).replace("\"", "\"\"") + '"';
}

// What a program reads: numbers without units and separators of thousands, nothing for "-".
QString csv_field(const Cell* cell) {
  if (cell == nullptr) return {};
  if (!cell->sort.isValid()) return csv_field(cell->text);
  if (cell->text.isEmpty() || cell->text == "-") return {};
  return QString::number(cell->sort.toDouble(), 'g', QLocale::FloatingPointShortest);
}

}  // namespace

void ShownRows::set_words(const QStringList& words) {
  words_ = words;
  invalidateFilter();
}

void ShownRows::set_wanted(std::vector<bool> wanted) {
  wanted_ = std::move(wanted);
  invalidateFilter();
}

bool ShownRows::filterAcceptsRow(int row, const QModelIndex& parent) const {
  if (!wanted_.empty() && !wanted_[static_cast<std::size_t>(row)]) return false;
  if (words_.isEmpty()) return true;
  QString line;
  for (int c = 0; c < sourceModel()->columnCount(parent); ++c)
    line += sourceModel()->index(row, c, parent).data().toString() + ' ';
  return std::all_of(words_.begin(), words_.end(),
                     [&](const QString& w) { return line.contains(w, Qt::CaseInsensitive); });
}

bool ShownRows::lessThan(const QModelIndex& a, const QModelIndex& b) const {
  const Cell *x = cell_at(a), *y = cell_at(b);
  if (x == nullptr || y == nullptr) return x == nullptr && y != nullptr;
  if (x->sort.isValid() && y->sort.isValid()) return x->sort.toDouble() < y->sort.toDouble();
  return QString::localeAwareCompare(x->text, y->text) < 0;
}

Table::Table(const QString& name, const QStringList& headers, const QString& hint, QWidget* parent)
    : QTableView(parent), hint_(hint), cells_(new CellModel(headers, this)) {
  shown_.setSourceModel(cells_);
  setModel(&shown_);
  setAccessibleName(name);
  setSelectionBehavior(QAbstractItemView::SelectRows);
  setSelectionMode(QAbstractItemView::ExtendedSelection);
  setEditTriggers(QAbstractItemView::NoEditTriggers);
  setAlternatingRowColors(true);
  setShowGrid(false);
  setWordWrap(false);
  verticalHeader()->hide();
  verticalHeader()->setDefaultSectionSize(fontMetrics().height() + 6);
  horizontalHeader()->setHighlightSections(false);
  horizontalHeader()->setSortIndicator(-1, Qt::AscendingOrder);
  setSortingEnabled(true);
  connect(selectionModel(), &QItemSelectionModel::selectionChanged, this, &Table::selection_changed);
  connect(this, &QTableView::clicked, this,
          [this](const QModelIndex& at) { Q_EMIT picked(number(at.row())); });
  connect(this, &QTableView::doubleClicked, this,
          [this](const QModelIndex& at) { Q_EMIT activated_number(number(at.row())); });
}

void Table::fill(std::vector<std::vector<Cell>> rows) {
  shown_.set_wanted({});
  horizontalHeader()->setSortIndicator(-1, Qt::AscendingOrder);
  cells_->fill(std::move(rows));
  setSortingEnabled(false);  // no room for an arrow, which few columns have
  resizeColumnsToContents();
  setSortingEnabled(true);
  Q_EMIT selection_changed();  // nothing is selected any more, which resetting a model does not say
}

void Table::set_filter(const QString& words) {
  shown_.set_words(words.split(' ', Qt::SkipEmptyParts));
}

int Table::number(int row) const {
  const QModelIndex at = shown_.index(row, 0);
  return at.isValid() ? shown_.mapToSource(at).row() : -1;
}

std::vector<int> Table::selected_numbers() const {
  QModelIndexList rows = selectionModel()->selectedRows();
  std::sort(rows.begin(), rows.end(),
            [](const QModelIndex& a, const QModelIndex& b) { return a.row() < b.row(); });
  std::vector<int> out;
  for (const QModelIndex& at : rows) out.push_back(number(at.row()));
  return out;
}

int Table::selected() const {
  const std::vector<int> rows = selected_numbers();
  return rows.empty() ? -1 : rows.front();
}

void Table::select_number(int n) {
  const QModelIndex at = shown_.mapFromSource(cells_->index(n, 0));
  if (!at.isValid()) return;
  selectRow(at.row());
  scrollTo(at);
}

QString Table::csv() const {
  QString out;
  const auto line = [&](auto&& field) {
    QStringList fields;
    for (int c = 0; c < shown_.columnCount(); ++c) fields << field(c);
    out += fields.join(',') + '\n';
  };
  line([&](int c) { return csv_field(shown_.headerData(c, Qt::Horizontal).toString()); });
  for (int r = 0; r < rows(); ++r)
    line([&](int c) { return csv_field(cell_at(shown_.mapToSource(shown_.index(r, c)))); });
  return out;
}

void Table::keyPressEvent(QKeyEvent* event) {
  if (event->matches(QKeySequence::Copy)) {
    QApplication::clipboard()->setText(csv());
  } else if ((event->key() == Qt::Key_Return || event->key() == Qt::Key_Enter) && currentIndex().isValid()) {
    const int n = number(currentIndex().row());
    Q_EMIT picked(n);
    Q_EMIT activated_number(n);
  } else {
    QTableView::keyPressEvent(event);
  }
}

void Table::paintEvent(QPaintEvent* event) {
  QTableView::paintEvent(event);
  if (rows() > 0) return;
  QPainter painter(viewport());
  painter.setPen(Theme::of(palette()).faint_text);
  painter.drawText(
      viewport()->rect().adjusted(12, 8, -12, -8), Qt::AlignCenter | Qt::TextWordWrap,
      cells_->rowCount({}) > 0 ? tr("No row is left: widen the words or ranges asked for.") : hint_);
}

}  // namespace orrery::gui
