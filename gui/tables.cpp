// SPDX-License-Identifier: Apache-2.0
#include "gui/tables.h"

#include <QApplication>
#include <QClipboard>
#include <QHeaderView>
#include <QKeyEvent>

namespace orrery::gui {
namespace {

constexpr int kSortRole = Qt::UserRole, kNumberRole = Qt::UserRole + 1;

class Item : public QTableWidgetItem {
 public:
  explicit Item(const Cell& cell) : QTableWidgetItem(cell.text) {
    setFlags(Qt::ItemIsEnabled | Qt::ItemIsSelectable);
    if (cell.sort.isValid()) {
      setData(kSortRole, cell.sort);
      setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
    }
  }
  bool operator<(const QTableWidgetItem& other) const override {
    const QVariant a = data(kSortRole), b = other.data(kSortRole);
    if (a.isValid() && b.isValid()) return a.toDouble() < b.toDouble();
    return QTableWidgetItem::operator<(other);
  }
};

QString csv_field(const QString& text) {
  if (!text.contains(',') && !text.contains('"') && !text.contains('\n')) return text;
  return '"' + QString(text).replace("\"", "\"\"") + '"';
}

// What a program reads: numbers without units and separators of thousands, nothing for "-".
QString csv_field(const QTableWidgetItem* item) {
  const QVariant number = item != nullptr ? item->data(kSortRole) : QVariant();
  if (!number.isValid()) return item != nullptr ? csv_field(item->text()) : QString();
  if (item->text().isEmpty() || item->text() == "-") return {};
  return QString::number(number.toDouble(), 'g', QLocale::FloatingPointShortest);
}

}  // namespace

Table::Table(const QString& name, const QStringList& headers, QWidget* parent)
    : QTableWidget(0, static_cast<int>(headers.size()), parent) {
  setAccessibleName(name);
  setHorizontalHeaderLabels(headers);
  setSelectionBehavior(QAbstractItemView::SelectRows);
  setSelectionMode(QAbstractItemView::ExtendedSelection);
  setAlternatingRowColors(true);
  setShowGrid(false);
  setWordWrap(false);
  verticalHeader()->hide();
  verticalHeader()->setDefaultSectionSize(fontMetrics().height() + 6);
  horizontalHeader()->setHighlightSections(false);
  horizontalHeader()->setDefaultAlignment(Qt::AlignLeft | Qt::AlignVCenter);
}

void Table::fill(const std::vector<std::vector<Cell>>& rows) {
  setSortingEnabled(false);
  setRowCount(0);
  setRowCount(static_cast<int>(rows.size()));
  for (int r = 0; r < rowCount(); ++r) {
    const auto& row = rows[static_cast<std::size_t>(r)];
    for (int c = 0; c < std::min(columnCount(), static_cast<int>(row.size())); ++c) {
      auto* item = new Item(row[static_cast<std::size_t>(c)]);
      if (c == 0) item->setData(kNumberRole, r);
      setItem(r, c, item);
      if (r == 0)
        horizontalHeaderItem(c)->setTextAlignment(item->textAlignment() == 0
                                                      ? Qt::AlignLeft | Qt::AlignVCenter
                                                      : Qt::AlignRight | Qt::AlignVCenter);
    }
  }
  resizeColumnsToContents();
  horizontalHeader()->setSortIndicator(-1, Qt::AscendingOrder);
  setSortingEnabled(true);
}

int Table::number(int row) const {
  const QTableWidgetItem* first = row >= 0 && row < rowCount() ? item(row, 0) : nullptr;
  return first ? first->data(kNumberRole).toInt() : -1;
}

int Table::selected() const {
  const auto rows = selectionModel()->selectedRows();
  return rows.isEmpty() ? -1 : number(rows.front().row());
}

void Table::select_number(int n) {
  for (int r = 0; r < rowCount(); ++r) {
    if (number(r) == n) {
      selectRow(r);
      scrollToItem(item(r, 0));
      return;
    }
  }
}

QString Table::csv() const {
  QString out;
  const auto line = [&](auto&& field) {
    QStringList fields;
    for (int c = 0; c < columnCount(); ++c) fields << field(c);
    out += fields.join(',') + '\n';
  };
  line([&](int c) { return csv_field(horizontalHeaderItem(c)->text()); });
  for (int r = 0; r < rowCount(); ++r) {
    if (!isRowHidden(r)) line([&](int c) { return csv_field(item(r, c)); });
  }
  return out;
}

void Table::keyPressEvent(QKeyEvent* event) {
  if (event->matches(QKeySequence::Copy))
    QApplication::clipboard()->setText(csv());
  else
    QTableWidget::keyPressEvent(event);
}

}  // namespace orrery::gui
