"""Why a step takes as long as it takes."""
