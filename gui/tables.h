// SPDX-License-Identifier: Apache-2.0
//
// Tables of results: sorted by what cells hold, not by their text; filtered by words; copied and saved as
// CSV.
#pragma once

#include <QSortFilterProxyModel>
#include <QStringList>
#include <QTableView>
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

class CellModel;

// The rows that a table shows, in their order.
class ShownRows : public QSortFilterProxyModel {
  Q_OBJECT

 public:
  using QSortFilterProxyModel::QSortFilterProxyModel;
  void set_words(const QStringList& words);
  // By row as it was filled; empty: all.
  void set_wanted(std::vector<bool> wanted);

 protected:
  bool filterAcceptsRow(int row, const QModelIndex& parent) const override;
  bool lessThan(const QModelIndex& a, const QModelIndex& b) const override;

 private:
  QStringList words_;
  std::vector<bool> wanted_;
};

class Table : public QTableView {
  Q_OBJECT

 public:
  // `hint`: what a table without rows says, so that people know what to do.
  Table(const QString& name, const QStringList& headers, const QString& hint, QWidget* parent = nullptr);
  // Rows keep their number, from 0 on, whatever they are sorted by. All are shown again in this order.
  void fill(std::vector<std::vector<Cell>> rows);
  // Shows rows that have all of these words in them, of those that are wanted, by number; empty: all.
  void set_filter(const QString& words);
  void set_wanted(std::vector<bool> wanted) { shown_.set_wanted(std::move(wanted)); }

  // What is shown, from the top.
  int rows() const { return shown_.rowCount(); }
  QString text(int row, int column) const { return shown_.index(row, column).data().toString(); }
  int number(int row) const;  // -1: no such row

  std::vector<int> selected_numbers() const;  // from the top
  int selected() const;                       // the first of them; -1: none
  void select_number(int number);
  // What is shown, with the headers; numbers plain.
  QString csv() const;

 Q_SIGNALS:
  void selection_changed();
  void picked(int number);            // by a click or Enter
  void activated_number(int number);  // by a double-click or Enter

 protected:
  void keyPressEvent(QKeyEvent* event) override;
  void paintEvent(QPaintEvent* event) override;

 private:
  QString hint_;
  CellModel* cells_;
  ShownRows shown_;
};

}  // namespace orrery::gui
