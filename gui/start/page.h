// SPDX-License-Identifier: Apache-2.0
//
// What people see first: files that were open before, scenarios that ship, and a plan without a file.
#pragma once

#include <QComboBox>
#include <QLineEdit>
#include <QListWidget>
#include <QPushButton>
#include <QSpinBox>
#include <QWidget>

#include "gui/session.h"

namespace orrery::gui {

// Files that were opened, the last one first; those that are gone are left out.
QStringList recent_files();
void remember_file(const QString& path);

class StartPage : public QWidget {
  Q_OBJECT

 public:
  explicit StartPage(Session& session, QWidget* parent = nullptr);

  QListWidget& recent() { return *recent_; }
  QListWidget& examples() { return *examples_; }
  QComboBox& model() { return *model_; }
  QComboBox& cluster() { return *cluster_; }
  QSpinBox& nodes() { return *nodes_; }
  QSpinBox& batch() { return *batch_; }
  QSpinBox& sequence() { return *sequence_; }
  QLineEdit& tokens() { return *tokens_; }
  QPushButton& plan() { return *plan_; }
  // The scenario that the fields say.
  Json scenario() const;

 Q_SIGNALS:
  void wants_file();  // of the user's choice

 private:
  QWidget* build_files();
  QWidget* build_form();
  void fill_recent();

  Session& session_;
  QListWidget *recent_, *examples_;
  QComboBox *model_, *cluster_;
  QSpinBox *nodes_, *batch_, *sequence_;
  QLineEdit* tokens_;
  QPushButton* plan_;
};

}  // namespace orrery::gui
