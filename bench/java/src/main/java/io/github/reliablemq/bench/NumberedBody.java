package io.github.reliablemq.bench;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * A message body that carries a number: 19 decimal digits, then a filler up to the wanted size.
 *
 * <p>The number is {@code thread * 10^12 + n}, n counting up from 0 in that thread, and no number is
 * handed to {@code send} twice. So a reader can tell a lost message, a doubled one and a wrong order.
 */
final class NumberedBody {
    static final long THREAD_STRIDE = 1_000_000_000_000L;
    private static final int DIGITS = 19;

    private NumberedBody() {
    }

    static byte[] of(long number, int size) {
        if (size < DIGITS) {
            throw new IllegalArgumentException("a body has at least " + DIGITS + " bytes");
        }
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        long rest = number;
        for (int at = DIGITS - 1; at >= 0; at--) {
            body[at] = (byte) ('0' + rest % 10);
            rest /= 10;
        }
        return body;
    }

    static long numberOf(byte[] body) {
        return Long.parseLong(new String(body, 0, DIGITS, StandardCharsets.US_ASCII));
    }
}
