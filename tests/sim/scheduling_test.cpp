// SPDX-License-Identifier: Apache-2.0
//
// Queues of a few jobs whose schedules are derived by hand in the comments. Times are hours. Nodes have 8
// devices, so 8 n devices are n nodes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/scheduling/report.h"

namespace orrery::sim {
namespace {

Ticks h(double hours) {
  return ticks(hours * 3600);
}
double hours(Ticks t) {
  return seconds(t) / 3600;
}

// A job of whole nodes for tenant 0.
ClusterJob job(const char* name, double submit, std::int64_t nodes, double work) {
  ClusterJob j;
  j.name = name;
  j.submit = h(submit);
  j.devices = 8 * nodes;
  j.work = h(work);
  return j;
}
ClusterJob job(const char* name, double submit, std::int64_t nodes, double work, std::int64_t priority) {
  ClusterJob j = job(name, submit, nodes, work);
  j.priority = priority;
  return j;
}

struct Times {
  double start, end;
};

class Queue : public testing::Test {
 protected:
  Queue() {
    queue_.tenants = {{"a", 1, {}}, {"b", 1, {}}};
    policy_.backfill = Backfill::kNone;
    policy_.half_life = RunTime{0};
  }
  void of_tenant(std::int32_t tenant, std::initializer_list<std::size_t> jobs) {
    for (const std::size_t j : jobs) queue_.jobs[j].tenant = tenant;
  }
  // Runs the queue on so many nodes under one switch, and compares first starts and last ends.
  ScheduleOutcome expect(std::int64_t nodes, const std::vector<Times>& times) {
    const ClusterNodes cluster = plain_nodes(nodes, 8, nodes);
    ScheduleOutcome o = run_schedule(queue_, policy_, cluster);
    EXPECT_TRUE(is_conserved(queue_, o));
    for (std::size_t i = 0; i < times.size(); ++i) {
      EXPECT_DOUBLE_EQ(hours(o.jobs[i].start), times[i].start) << queue_.jobs[i].name;
      EXPECT_DOUBLE_EQ(hours(o.jobs[i].end), times[i].end) << queue_.jobs[i].name;
    }
    return o;
  }
  JobQueue queue_;
  SchedulingPolicy policy_;
};

// 4 nodes.
//   A (0 h, 2 nodes, 4 h) starts at 0.        2 nodes are free.
//   B (0 h, 4 nodes, 2 h) does not fit: it waits for A, until 4; ends at 6. Nobody passes it.
//   C (0 h, 1 node, 3 h) and D (1 h, 1 node, 6 h) wait for B: both start at 6, end at 9 and 12.
//   E (2 h, 2 nodes, 2 h): at 6 two nodes are left beside C and D: it starts at 6, ends at 8.
TEST_F(Queue, Fifo) {
  queue_.jobs = {job("A", 0, 2, 4), job("B", 0, 4, 2), job("C", 0, 1, 3), job("D", 1, 1, 6),
                 job("E", 2, 2, 2)};
  const ScheduleOutcome o = expect(4, {{0, 4}, {4, 6}, {6, 9}, {6, 12}, {6, 8}});
  // Waits 0, 4, 6, 5, 4 h: 3.8 in the mean. Held: 2*4 + 4*2 + 3 + 6 + 2*2 = 29 node hours of 4 * 12 = 48.
  const ScheduleReport r = report_of(queue_, plain_nodes(4, 8, 4), o);
  EXPECT_DOUBLE_EQ(r.all.wait.mean / 3600, 3.8);
  EXPECT_DOUBLE_EQ(r.all.wait.p50 / 3600, 4);
  EXPECT_DOUBLE_EQ(r.makespan_s / 3600, 12);
  EXPECT_DOUBLE_EQ(r.held, 29.0 / 48);
  EXPECT_DOUBLE_EQ(r.useful, 29.0 / 48);
  // Free while anybody waits: two nodes from 0 to 4, when B starts; from 6 on nobody waits. 8 / 48.
  EXPECT_DOUBLE_EQ(r.wanted, 8.0 / 48);
  EXPECT_DOUBLE_EQ(r.fragmentation, 0);  // B asks for more nodes than are free
}

// The same with backfill: B has all four nodes from 4 on.
//   C (0 h, 1 node, 3 h) ends at 3, before B: it starts at 0.
//   D (1 h, 1 node, 6 h) would end at 7 on a node that B needs: it waits until B ends, 6 to 12.
//   E (2 h, 2 nodes, 2 h): at 2 one node is free. At 3 two are, and it would end at 5, after 4: it starts
//   at 6.
TEST_F(Queue, EasyBackfill) {
  policy_.backfill = Backfill::kEasy;
  queue_.jobs = {job("A", 0, 2, 4), job("B", 0, 4, 2), job("C", 0, 1, 3), job("D", 1, 1, 6),
                 job("E", 2, 2, 2)};
  const ScheduleOutcome o = expect(4, {{0, 4}, {4, 6}, {0, 3}, {6, 12}, {6, 8}});
  EXPECT_TRUE(o.jobs[2].backfilled);
  EXPECT_FALSE(o.jobs[3].backfilled);
}

// A head that leaves nodes over: B needs 3 of the 4 at 4 h, so one of the two free ones may be held for
// longer.
//   C (0 h, 1 node, 9 h) starts at 0. D (0 h, 1 node, 5 h) would take the other one past 4: it waits.
//   At 4 B starts on three nodes and ends at 6. D starts at 6.
//   E (0 h, 1 node, 4 h) ends at 4 exactly: it starts at 0.
TEST_F(Queue, EasyBackfillUsesWhatTheHeadLeaves) {
  policy_.backfill = Backfill::kEasy;
  queue_.jobs = {job("A", 0, 2, 4), job("B", 0, 3, 2), job("C", 0, 1, 9), job("D", 0, 1, 5),
                 job("E", 0, 1, 4)};
  expect(4, {{0, 4}, {4, 6}, {0, 9}, {6, 11}, {0, 4}});
}

// Users ask for more than they need. A asks for 8 h and takes 4: B's reservation is at 8, so D (6 h from 1
// on, until 7) may pass. A ends at 4, and B waits for D until 7.
TEST_F(Queue, BackfillGoesByWhatIsAskedFor) {
  policy_.backfill = Backfill::kEasy;
  queue_.jobs = {job("A", 0, 2, 4), job("B", 0, 4, 2), job("D", 1, 1, 6)};
  queue_.jobs[0].requested = h(8);
  expect(4, {{0, 4}, {7, 9}, {1, 7}});
}

// How many jobs behind the head are tried: of D, E and F only the last one is short enough, and it is third.
TEST_F(Queue, BackfillDepth) {
  policy_.backfill = Backfill::kEasy;
  queue_.jobs = {job("A", 0, 2, 4), job("B", 0, 4, 2), job("D", 0, 1, 6), job("E", 0, 1, 6),
                 job("F", 0, 1, 1)};
  policy_.backfill_depth = 2;
  expect(4, {{0, 4}, {4, 6}, {6, 12}, {6, 12}, {6, 7}});
  policy_.backfill_depth = 3;
  expect(4, {{0, 4}, {4, 6}, {6, 12}, {6, 12}, {0, 1}});
}

// 2 nodes. A (0 h, priority 0) and B (0 h, priority 1) hold one each. C (1 h, priority 5, 2 nodes, 2 h) waits
// without preemption until both end, 10. D (1 h, priority 1) comes behind C, E (0 h, priority 0) behind D.
//   C 10 to 12, then D (1 h) and E (1 h) 12 to 13.
TEST_F(Queue, PrioritiesOrderWhoWaits) {
  policy_.order = QueueOrder::kPriority;
  queue_.jobs = {job("A", 0, 1, 10, 0), job("B", 0, 1, 10, 1), job("E", 0, 1, 1, 0), job("C", 1, 2, 2, 5),
                 job("D", 1, 1, 1, 1)};
  expect(2, {{0, 10}, {0, 10}, {12, 13}, {10, 12}, {12, 13}});
}

// With preemption. A has work of 10 h, a checkpoint of 0.5 h behind every 2 h of it, and restarts for 0.25 h.
//   t 0     A (2 nodes, priority 0) starts; alone it takes 10 + 4 * 0.5 = 12 h.
//   t 6     C (2 nodes, 2 h, priority 5) takes its nodes. A has worked 0-2, 2.5-4.5, 5-6: 5 h, of which 4 are
//           in checkpoints; 1 h is lost, and two checkpoints took 1 h.
//   t 8     C ends. A restarts until 8.25 and has 6 h of work left, with checkpoints behind 2 and 4 h of
//   them:
//           6 + 2 * 0.5 = 7 h. It ends at 15.25.
//   D (7 h, 1 node, 1 h, priority 0) was submitted after A: it waits for A, until 15.25; ends at 16.25.
TEST_F(Queue, PreemptionCountsCheckpoints) {
  policy_.order = QueueOrder::kPriority;
  policy_.preemption = PreemptionRule::kLowerPriority;
  queue_.jobs = {job("A", 0, 2, 10, 0), job("C", 6, 2, 2, 5), job("D", 7, 1, 1, 0)};
  queue_.jobs[0].checkpoint_every = h(2);
  queue_.jobs[0].checkpoint_cost = h(0.5);
  queue_.jobs[0].restart = h(0.25);
  const ScheduleOutcome o = expect(2, {{0, 15.25}, {6, 8}, {15.25, 16.25}});
  const JobOutcome& a = o.jobs[0];
  EXPECT_EQ(a.preemptions, 1);
  EXPECT_DOUBLE_EQ(hours(a.useful), 10);
  EXPECT_DOUBLE_EQ(hours(a.lost), 1);
  EXPECT_DOUBLE_EQ(hours(a.checkpoint), 2);
  EXPECT_DOUBLE_EQ(hours(a.restart), 0.25);
  EXPECT_EQ(o.attempts.size(), 4U);
}

// Without a checkpoint all of its 6 h are lost: it starts again at 8 and takes 10 h.
TEST_F(Queue, PreemptionWithoutCheckpointsLosesAll) {
  policy_.order = QueueOrder::kPriority;
  policy_.preemption = PreemptionRule::kLowerPriority;
  queue_.jobs = {job("A", 0, 2, 10, 0), job("C", 6, 2, 2, 5)};
  const ScheduleOutcome o = expect(2, {{0, 18}, {6, 8}});
  EXPECT_DOUBLE_EQ(hours(o.jobs[0].lost), 6);
}

// Who goes: 4 nodes, all held by A (priority 1, 1 node), B (0, 1 node, since 0), C (0, 1 node, since 1) and
// D (2, 1 node). E (2 h, 2 nodes, priority 2) takes those of priority 0: first C, which started last, and B.
// D has E's own priority and A is not needed. F (2.5 h, 1 node, priority 1) finds nobody below it: it waits.
//   E 2 to 3. Then F is first (priority 1), then B before C (submission): F 3 to 4, B 3 to 13, C 4 to 14.
TEST_F(Queue, PreemptionTakesTheLowestAndTheLatest) {
  policy_.order = QueueOrder::kPriority;
  policy_.preemption = PreemptionRule::kLowerPriority;
  queue_.jobs = {job("A", 0, 1, 20, 1), job("B", 0, 1, 10, 0), job("C", 1, 1, 10, 0),
                 job("D", 0, 1, 20, 2), job("E", 2, 2, 1, 2),  job("F", 2.5, 1, 1, 1)};
  const ScheduleOutcome o = expect(4, {{0, 20}, {0, 13}, {1, 14}, {0, 20}, {2, 3}, {3, 4}});
  EXPECT_EQ(o.jobs[0].preemptions + o.jobs[3].preemptions, 0);
  EXPECT_EQ(o.jobs[1].preemptions, 1);
  EXPECT_EQ(o.jobs[2].preemptions, 1);
}

// 2 nodes, fair share. Tenant a submits A1, A2, A3 at 0, tenant b B1, B2 at 1 h; all have 1 node and 2 h.
//   t 0  a alone: A1, A2.
//   t 2  a has used 4 node hours, b none: B1; nobody has used more since, but b holds a node... and still 0 <
//   4: B2. t 4  a and b have used 4 each, and hold nothing: equal, and A3 was submitted before: 4 to 6.
TEST_F(Queue, FairShareGoesByUse) {
  policy_.order = QueueOrder::kFairShare;
  queue_.jobs = {job("A1", 0, 1, 2), job("A2", 0, 1, 2), job("A3", 0, 1, 2), job("B1", 1, 1, 2),
                 job("B2", 1, 1, 2)};
  of_tenant(1, {3, 4});
  expect(2, {{0, 2}, {0, 2}, {4, 6}, {2, 4}, {2, 4}});
  policy_.order = QueueOrder::kFifo;  // and by submission A3 and B1 come first
  expect(2, {{0, 2}, {0, 2}, {2, 4}, {2, 4}, {4, 6}});
}

// Equal use is decided by what tenants hold: at 0, of A1, A2 and B1, a gets a node, then b.
//   A1, B1 0 to 2. At 2 both have used 2: A2 was submitted first; then a holds one, b none: B2. 2 to 4.
TEST_F(Queue, FairShareCountsWhatIsHeld) {
  policy_.order = QueueOrder::kFairShare;
  queue_.jobs = {job("A1", 0, 1, 2), job("A2", 0, 1, 2), job("B1", 0, 1, 2), job("B2", 0, 1, 2)};
  of_tenant(1, {2, 3});
  expect(2, {{0, 2}, {2, 4}, {0, 2}, {2, 4}});
}

// a's share is 3, b's 1. One node, jobs of 1 h, four each, all at 0. Used over share, before each hour:
//   0: a 0, b 0       A1 (submitted first)
//   1: a 1/3, b 0     B1
//   2: a 1/3, b 1     A2
//   3: a 2/3, b 1     A3
//   4: a 1, b 1       A4 (before B2 in the input)
//   5: a 4/3, b 1     B2, and then B3, B4: nobody else waits
TEST_F(Queue, FairShareWeighs) {
  policy_.order = QueueOrder::kFairShare;
  queue_.tenants[0].share = 3;
  for (const char* name : {"A1", "A2", "A3", "A4", "B1", "B2", "B3", "B4"})
    queue_.jobs.push_back(job(name, 0, 1, 1));
  of_tenant(1, {4, 5, 6, 7});
  expect(1, {{0, 1}, {2, 3}, {3, 4}, {4, 5}, {1, 2}, {5, 6}, {6, 7}, {7, 8}});
}

// What was used fades. One node. a works 0 to 4, b 4 to 6; at 6 both wait.
//   No half-life: a has used 4, b 2: b is next.
//   Half-life 1 h: a 1/ln 2 (1 - 1/16) 2^-2 = 0.338, b 1/ln 2 (1 - 1/4) = 1.082: a is next.
TEST_F(Queue, FairShareFades) {
  policy_.order = QueueOrder::kFairShare;
  queue_.jobs = {job("A1", 0, 1, 4), job("B1", 3, 1, 2), job("A2", 5, 1, 1), job("B2", 5, 1, 1)};
  of_tenant(1, {1, 3});
  expect(1, {{0, 4}, {4, 6}, {7, 8}, {6, 7}});
  policy_.half_life = RunTime{3600};
  expect(1, {{0, 4}, {4, 6}, {6, 7}, {7, 8}});
}

// 4 nodes, a may hold 16 devices: 2 nodes. A1, A2 at 0; A3 and A4 wait for them though two nodes are free. B1
// (0 h, after them in the input) does not wait for a.
//   A1, A2 0 to 2 and 0 to 3; A3 2 to 4; A4 3 to 5; B1 (2 nodes) 0 to 1.
TEST_F(Queue, QuotasHoldATenantBack) {
  queue_.tenants[0].quota = 16;
  queue_.jobs = {job("A1", 0, 1, 2), job("A2", 0, 1, 3), job("A3", 0, 1, 2), job("A4", 0, 1, 2),
                 job("B1", 0, 2, 1)};
  of_tenant(1, {4});
  expect(4, {{0, 2}, {0, 3}, {2, 4}, {3, 5}, {0, 1}});
}

// 2 nodes of 8 devices. A, B and C hold 5 each: A and B fit beside nothing of C's size, so C waits for one of
// them (2 h) though 6 devices are free: 3 on each node. D (2 devices) waits behind it, or passes it.
TEST_F(Queue, PartsOfNodes) {
  queue_.jobs = {job("A", 0, 1, 2), job("B", 0, 1, 4), job("C", 0, 1, 1), job("D", 0, 1, 2)};
  for (std::size_t i = 0; i < 3; ++i) queue_.jobs[i].devices = 5;
  queue_.jobs[3].devices = 2;
  const ScheduleOutcome o = expect(2, {{0, 2}, {0, 4}, {2, 3}, {2, 4}});
  // From 0 to 2 the head would fit into 6 free devices of 16, were they together: 6 * 2 / (16 * 4).
  EXPECT_DOUBLE_EQ(report_of(queue_, plain_nodes(2, 8, 2), o).fragmentation, 12.0 / 64);
  policy_.backfill = Backfill::kEasy;
  expect(2, {{0, 2}, {0, 4}, {2, 3}, {0, 2}});
}

// A job of 20 devices gets three whole nodes: 4 of their devices are held and not used.
TEST_F(Queue, WholeNodesAreHeld) {
  queue_.jobs = {job("A", 0, 1, 2), job("B", 0, 1, 2)};
  queue_.jobs[0].devices = 20;
  queue_.jobs[1].devices = 1;
  const ScheduleOutcome o = expect(3, {{0, 2}, {2, 4}});
  const ScheduleReport r = report_of(queue_, plain_nodes(3, 8, 3), o);
  EXPECT_DOUBLE_EQ(r.unasked, 8.0 / 96);  // 4 devices for 2 h, of 24 for 4 h
  EXPECT_DOUBLE_EQ(r.useful, (40.0 + 2.0) / 96);
}

TEST(Progress, CountsCheckpoints) {
  const Progress p{.work = h(10), .every = h(3), .cost = h(0.1), .restart = h(1)};
  EXPECT_EQ(p.total(), h(11.3));  // restart, 10 h, checkpoints at 3, 6 and 9 h
  const Spent s = p.after(h(8.0));
  EXPECT_EQ(s.restart, h(1));
  EXPECT_EQ(s.kept, h(6));
  EXPECT_EQ(s.work, h(6.8));  // 7 h less two checkpoints
  EXPECT_EQ(s.checkpoint, h(0.2));
  EXPECT_EQ((Progress{.work = h(9), .every = h(3), .cost = h(1)}).total(), h(11));  // none at the end
}

}  // namespace
}  // namespace orrery::sim
