/* cluster_internal.h: what functions that are given a cluster do first. */
#ifndef DML_DIST_CLUSTER_INTERNAL_H
#define DML_DIST_CLUSTER_INTERNAL_H

#include "base/platform.h"
#include "dist/cluster.h"

/* The cluster, or instead of NULL one with an error. */
DML__LOCAL dml_cluster dml__cluster_given(const dml_cluster *cluster);

#endif
