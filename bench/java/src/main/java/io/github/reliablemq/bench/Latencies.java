package io.github.reliablemq.bench;

import java.util.Arrays;
import java.util.List;

/** Durations in nanoseconds, collected by one thread. */
final class Latencies {
    private long[] values = new long[1 << 16];
    private int size;

    void add(long nanoseconds) {
        if (size == values.length) {
            values = Arrays.copyOf(values, size * 2);
        }
        values[size++] = nanoseconds;
    }

    /** The durations of all threads, ascending. */
    static long[] sorted(List<Latencies> parts) {
        long[] all = new long[parts.stream().mapToInt(part -> part.size).sum()];
        int at = 0;
        for (Latencies part : parts) {
            System.arraycopy(part.values, 0, all, at, part.size);
            at += part.size;
        }
        Arrays.sort(all);
        return all;
    }

    /** The nearest-rank quantile of ascending durations, in milliseconds; 0 when there is none. */
    static double quantile(long[] sorted, double share) {
        if (sorted.length == 0) {
            return 0;
        }
        int rank = (int) Math.ceil(share * sorted.length);
        return sorted[Math.max(rank, 1) - 1] / 1e6;
    }
}
