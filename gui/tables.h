// SPDX-License-Identifier: Apache-2.0
//
// Tables of results: sorted by what cells hold, not by their text; copied and saved as CSV.
#pragma once

#include <QStringList>
#include <QTableWidget>
#include <QVariant>
#include <vector>

namespace orrery::gui {

// A cell: what is shown and, where that is a number, what it is sorted by and CSV has: the number that is
// shown, of seconds, bytes or bytes per second where a unit is shown with it.
struct Cell {
  QString text;
  QVariant sort;
  Cell(QString t) : text(std::move(t)) {}
  Cell(QString t, double by) : text(std::move(t)), sort(by) {}
};

class Table : public QTableWidget {
  Q_OBJECT

 public:
  explicit Table(const QString& name, const QStringList& headers, QWidget* parent = nullptr);
  // Rows keep their number in the data of their first cell, whatever they are sorted by.
  void fill(const std::vector<std::vector<Cell>>& rows);
  // The number of a row as it was filled; -1 for none.
  int number(int row) const;
  int selected() const;  // number
  void select_number(int number);
  // Those that are shown, with the headers; numbers plain.
  QString csv() const;

 protected:
  void keyPressEvent(QKeyEvent* event) override;
};

}  // namespace orrery::gui
