package io.github.reliablemq.bench;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * One line per message, {@code queueId queueOffset messageId number}, in the order of the calls.
 *
 * <p>Every line is handed to the operating system before {@code write} returns, so that a test may
 * count lines while the program runs.
 */
final class PositionFile implements AutoCloseable {
    private final BufferedWriter writer;

    PositionFile(Path path) throws IOException {
        writer = Files.newBufferedWriter(path);
    }

    synchronized void write(int queueId, long queueOffset, String messageId, long number) throws IOException {
        writer.write(queueId + " " + queueOffset + " " + messageId + " " + number + "\n");
        writer.flush();
    }

    @Override
    public synchronized void close() throws IOException {
        writer.close();
    }
}
