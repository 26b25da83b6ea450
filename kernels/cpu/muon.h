// SPDX-License-Identifier: Apache-2.0
//
// Muon on a processor (core/muon.h), in fp32. With a 16-bit type each matrix that an iteration makes is
// rounded to it, as a device that stores it has it.
#pragma once

#include <vector>

#include "core/dtype.h"
#include "core/muon.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

// M = m M + factor G, and U.
void muon_momentum(const Muon& muon, float factor, Index n, const float* gradient, float* moment,
                   float* update);

// x [rows, columns] becomes what `iterations` make of it, without the factor of its size. `scratch` grows as
// needed. With no square above zero x stays.
void orthogonalise(Index rows, Index columns, std::int64_t iterations, DType type, float* x,
                   std::vector<float>& scratch);

// W = (1 - rate decay) W - rate X.
void muon_update(float rate, float decay, Index n, const float* update, float* weights);

}  // namespace orrery::kernels
