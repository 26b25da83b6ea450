// SPDX-License-Identifier: Apache-2.0
//
// The streams and groups of every program.
#pragma once

#include "program/program.h"

namespace orrery::program {

inline const Communication kCommunication = communication_of(mesh_of(Plan{}));
inline const StreamIndex kTpStream = kCommunication.stream("tp"), kDpStream = kCommunication.stream("dp"),
                         kSendStream = kCommunication.stream("pp-send"),
                         kRecvStream = kCommunication.stream("pp-recv");
inline const GroupIndex kTpGroup = kCommunication.group("tp"), kDpGroup = kCommunication.group("dp"),
                        kShardGroup = kCommunication.group("shard"),
                        kReplicaGroup = kCommunication.group("replica");

}  // namespace orrery::program
