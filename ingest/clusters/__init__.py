"""Several clusters, one policy: releases and what was logged travel through a bucket."""
